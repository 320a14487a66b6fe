"""Mamba's metadata builders of one version, from its sources, and batches of every kind to build it for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from sources import source_tree
from torch.utils._python_dispatch import TorchDispatchMode

from optimized.gate import source
from optimized.uniform_decode_metadata.sources import BLOCK_TABLE, BUILD, SPLIT, UPDATE
from optimized.uniform_decode_metadata.vllm import Shortcut, with_shortcut

DRAFTS, BLOCK_SIZE, BLOCKS = 3, 16, 12
CONVOLUTION = "vllm.v1.attention.backends.utils:compute_causal_conv1d_metadata"
BUILDER = BUILD.rpartition(".")[0]
METADATA = BUILD.partition(":")[0] + ":BaseMambaAttentionMetadata"
HELPERS = ("_compute_prefix_caching_block_indices", "_prefill_cpu_metadata")
GROUPS, ONE_KERNEL = 4, "0.33.0"
"""KV-cache groups of Mamba layers; the version from which one kernel chooses their blocks."""
MOST_REQUESTS, POISON = 8, -(2**20)
"""Rows of a group's own buffers, and what they hold before a build."""
OWN_ROWS = (
    "decode_num_accepted_tokens",
    "block_idx_last_scheduled_token",
    "block_idx_last_computed_token",
    "block_idx_last_scheduled_token_prev_step",
)
"""Its buffers of one number a request; the last three in mode "all" only."""


@dataclass(frozen=True)
class MambaSpec:
    """What of vLLM's class of this name is read."""

    block_size: int = BLOCK_SIZE
    num_speculative_blocks: int = DRAFTS


@dataclass
class Batch:
    """A batch's common metadata, made from each request's query length, context and whether it prefills."""

    query_start_loc_cpu: Any
    seq_lens: Any
    is_prefilling: Any
    block_table_tensor: Any
    max_query_len: int

    @classmethod
    def of(cls, *requests: tuple[int, int, bool], longest: int | None = None) -> Batch:
        queries = [query for query, _, _ in requests]
        lengths = torch.tensor([query + context for query, context, _ in requests], dtype=torch.int32)
        starts = torch.tensor([0, *np.cumsum(queries)], dtype=torch.int32)
        flags = torch.tensor([flag for _, _, flag in requests])
        table = torch.arange(1, 1 + len(requests) * BLOCKS, dtype=torch.int32).reshape(len(requests), BLOCKS)
        return cls(starts, lengths, flags, table, longest or max(queries))

    num_reqs = property(lambda self: len(self.seq_lens))
    num_actual_tokens = property(lambda self: int(self.query_start_loc_cpu[-1]))
    query_start_loc = property(lambda self: self.query_start_loc_cpu)
    seq_lens_cpu_upper_bound = property(lambda self: self.seq_lens)
    replace = replace

    def compute_num_computed_tokens(self) -> Any:
        return self.seq_lens - self.query_start_loc_cpu.diff()


DECODES = {
    "one decode": Batch.of((4, 50, False)),
    "four decodes": Batch.of(*[(4, 20 + 7 * row, False) for row in range(4)]),
    "decodes of other lengths": Batch.of((4, 50, False), (1, 33, False), (2, 15, False)),
    "padding": Batch.of((4, 50, False), (4, 12, False), (0, 0, False), (0, 0, False)),
    "a bound above the longest": Batch.of((1, 50, False), (1, 12, False), longest=4),
    "more decodes than a graph holds": Batch.of(*[(1, 9 + row, False) for row in range(1 + MOST_REQUESTS)], longest=4),
    "at a block's edge": Batch.of((4, BLOCK_SIZE - 4, False), (4, BLOCK_SIZE - 3, False), (4, 2 * BLOCK_SIZE, False)),
}
OTHERS = {
    "a prefill": Batch.of((40, 0, True)),
    "a prefill after decodes": Batch.of((4, 50, False), (4, 20, False), (31, 0, True)),
    "a short prefill": Batch.of((4, 50, False), (3, 0, True)),
    "a prefill's last token": Batch.of((1, 30, True), (4, 20, False)),
    "a prefill of one token": Batch.of((4, 20, False), (1, 0, True)),
    "a query that is too long": Batch.of((4, 20, False), (5, 20, False)),
}
BATCHES = DECODES | OTHERS


class Stock:
    """The builder's method of one version in a module of its own, with all that it calls."""

    def __init__(self, version: str) -> None:
        self.tree = source_tree(version)
        self.module: dict[str, Any] = {"torch": torch, "np": np, "MambaSpec": MambaSpec}
        self.module |= {"PIN_MEMORY": False, "PAD_SLOT_ID": -1, "np_to_pinned_tensor": torch.from_numpy}
        self.module |= {"dataclass": dataclass, "replace": replace, "NULL_BLOCK_ID": 0}
        self.text = self.text_of(BUILD)
        helpers = (f"{BUILDER}.{name}" for name in HELPERS)
        for target in (SPLIT, BLOCK_TABLE, CONVOLUTION, METADATA, BUILD, UPDATE, *helpers):
            if source(self.tree, target):
                self.define(self.text_of(target))

    def text_of(self, target: str) -> str:
        found = source(self.tree, target)
        assert found is not None, target
        return (
            "\n".join(line.removeprefix("    ") for line in found.splitlines())
            if "." in target.split(":")[1]
            else found
        )

    def define(self, text: str) -> None:
        exec(compile("from __future__ import annotations\n" + text, "<vllm>", "exec"), self.module)

    def builder(self, mode: str, drafts: int) -> SimpleNamespace:
        cache = SimpleNamespace(mamba_cache_mode=mode)
        found = SimpleNamespace(
            reorder_batch_threshold=1 + drafts,
            num_spec_tokens=drafts,
            use_spec_decode=drafts > 0,
            use_replayssm=False,
            use_flashinfer_replayssm=False,
            needs_causal_conv1d_metadata=True,
            decode_bc_pre_scratch=None,
            kv_cache_spec=MambaSpec(num_speculative_blocks=drafts),
            vllm_config=SimpleNamespace(cache_config=cache),
            metadata_cls=dict,
            _update_metadata_for_cudagraph_capture=lambda metadata: metadata,
        )
        for name in HELPERS:
            if name in self.module:
                setattr(found, name, MethodType(self.module[name], found))
        return found

    def group(self, mode: str, graphs: bool, **others: Any) -> SimpleNamespace:
        """The builder of one KV-cache group, with buffers of its own for FULL graphs, and vLLM's metadata class."""
        found = self.builder(mode, DRAFTS)
        found.metadata_cls = self.module["BaseMambaAttentionMetadata"]
        found._update_metadata_for_cudagraph_capture = MethodType(self.module[UPDATE.rpartition(".")[2]], found)
        chosen = SimpleNamespace(has_full_cudagraphs=lambda: graphs)
        found.compilation_config = SimpleNamespace(cudagraph_mode=chosen)
        found.decode_cudagraph_max_bs = MOST_REQUESTS
        for name in (*OWN_ROWS, "state_indices_tensor_d"):
            width = (1 + DRAFTS if mode != "all" else BLOCKS,) if name == "state_indices_tensor_d" else ()
            setattr(found, name, torch.full((MOST_REQUESTS, *width), POISON, dtype=torch.int32))
        vars(found).update(others)
        return found


class Side:
    """The groups of one server: their builders, and the method that builds for each."""

    def __init__(self, stock: Stock, mode: str, graphs: bool, switch: Shortcut | None = None) -> None:
        self.builders = [stock.group(mode, graphs) for _ in range(GROUPS)]
        self.method = shared_build(stock, switch) if switch else stock.module["_compute_common_metadata"]

    def build(self, batch: Batch, accepted: Any, order: range = range(GROUPS), **others: Any) -> list[Any]:
        """Each group's metadata, with a block table of its own."""
        return [self.one(group, batch, accepted, **others) for group in order]

    def one(self, group: int, batch: Batch, accepted: Any, **others: Any) -> Any:
        own = batch.replace(block_table_tensor=batch.block_table_tensor + 1000 * group)
        return self.method(self.builders[group], own, num_accepted_tokens=accepted, **others)


def shared_build(stock: Stock, switch: Shortcut) -> Callable[..., Any]:
    """The method as the switch puts it into this version."""
    original, table = stock.module["_compute_common_metadata"], stock.module["mamba_get_block_table_tensor"]
    block_table = table if stock.tree.name == ONE_KERNEL else partial(switch.block_table, table)
    return switch.sharing(original, with_shortcut(original, stock.text, switch.all_decode, block_table), block_table)


def accepted_of(batch: Batch) -> Any:
    return 1 + torch.arange(batch.num_reqs, dtype=torch.int32) % 4


def built(method: Callable[..., Any], builder: Any, batch: Batch, accepted: Any) -> dict[str, Any]:
    found: dict[str, Any] = method(builder, batch, num_accepted_tokens=accepted)
    return found


class Operations(TorchDispatchMode):
    """How many operations PyTorch carries out."""

    done = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.done += 1
        return func(*args, **(kwargs or {}))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    return type(one) is type(other) and bool(one == other)
