"""Mamba builders of several KV groups on a GPU, of the installed vLLM, and what a runner hands to them in each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

DEVICE = "cuda"
DRAFTS, GROUPS, BLOCKS, BLOCK_SIZE, MOST = 2, 5, 40, 1056, 8


def group(mode: str) -> Any:
    """A group's builder with its own buffers, and what it reads of a server filled in by hand."""
    from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
    from vllm.v1.kv_cache_interface import MambaSpec

    found = object.__new__(Mamba2AttentionMetadataBuilder)
    found.kv_cache_spec = object.__new__(MambaSpec)
    vars(found.kv_cache_spec).update(block_size=BLOCK_SIZE, num_speculative_blocks=DRAFTS)
    cache = SimpleNamespace(mamba_cache_mode=mode)
    found.vllm_config = SimpleNamespace(cache_config=cache, use_v2_model_runner=True)
    graphs = SimpleNamespace(has_full_cudagraphs=lambda: True)
    found.compilation_config = SimpleNamespace(cudagraph_mode=graphs)
    found.reorder_batch_threshold, found.num_spec_tokens, found.use_spec_decode = 1 + DRAFTS, DRAFTS, True
    found.use_replayssm = found.use_flashinfer_replayssm = False
    found.decode_bc_pre_scratch, found.decode_cudagraph_max_bs = None, MOST
    found.state_indices_tensor_d = torch.full((MOST, 1 + DRAFTS), -7, dtype=torch.int32, device=DEVICE)
    found.decode_num_accepted_tokens = torch.full((MOST,), -7, dtype=torch.int32, device=DEVICE)
    return found


class Step:
    """What a runner hands to every group, in tensors that it writes anew for each step, of as many requests."""

    def __init__(self, requests: int) -> None:
        self.random = torch.Generator().manual_seed(4)
        self.lengths = torch.zeros(MOST, dtype=torch.int32, device=DEVICE)
        self.tables = torch.zeros(GROUPS, MOST, BLOCKS, dtype=torch.int32, device=DEVICE)
        self.starts_cpu = torch.arange(0, 1 + MOST, dtype=torch.int32) * (1 + DRAFTS)
        self.starts = self.starts_cpu.to(DEVICE)
        self.next(requests)

    def next(self, requests: int) -> None:
        """Other lengths and blocks, and flags and accepted tokens made anew."""
        self.requests, draw = requests, partial(torch.randint, generator=self.random, dtype=torch.int32)
        self.lengths.copy_(draw(1 + DRAFTS, 35_000, (MOST,)))
        self.accepted = draw(1, 2 + DRAFTS, (requests,)).to(DEVICE)
        self.tables.copy_(draw(1, 4000, tuple(self.tables.shape)))
        self.bound = self.lengths.cpu()
        self.flags = torch.zeros(requests, dtype=torch.bool)

    def common(self, number: int) -> Any:
        """The common metadata of a group."""
        from vllm.v1.attention.backend import CommonAttentionMetadata

        requests = self.requests
        return CommonAttentionMetadata(
            query_start_loc=self.starts[: requests + 1],
            query_start_loc_cpu=self.starts_cpu[: requests + 1],
            seq_lens=self.lengths[:requests],
            seq_lens_cpu_upper_bound=self.bound[:requests],
            num_reqs=requests,
            num_actual_tokens=requests * (1 + DRAFTS),
            max_query_len=1 + DRAFTS,
            max_seq_len=BLOCKS * BLOCK_SIZE,
            block_table_tensor=self.tables[number, :requests],
            slot_mapping=self.starts,
            is_prefilling=self.flags[:],
        )

    def commons(self) -> list[Any]:
        """Those of all groups."""
        return [self.common(number) for number in range(GROUPS)]


def build(method: Callable[..., Any], builders: list[Any], commons: list[Any], step: Step) -> list[Any]:
    """Each group's metadata, as its builder's `build` asks for it."""
    return [
        method(builder, common, num_accepted_tokens=step.accepted[: step.requests])
        for builder, common in zip(builders, commons, strict=True)
    ]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def unlike(wanted: Any, got: Any) -> list[str]:
    """The fields in which they differ."""
    return [each.name for each in fields(wanted) if not equal(getattr(wanted, each.name), getattr(got, each.name))]
