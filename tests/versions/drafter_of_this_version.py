"""A DFlash drafter of a vLLM proposes on the CPU: python drafter_of_this_version.py VERSION FOLDER-OF-ITS-SOURCES.

Its classes are vLLM's own, with what they need of a server filled in by hand; two things stand in for a GPU: captured
graphs that count their replays, and the kernel that fills the drafter's input buffers, which is left out. Prints what
happened in each situation as JSON.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION, TREE = sys.argv[1:]
sys.path.insert(0, TREE)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from vllm.config.compilation import CUDAGraphMode  # noqa: E402
from vllm.v1.attention.backend import AttentionMetadataBuilder  # noqa: E402
from vllm.v1.attention.backends.triton_attn import (  # noqa: E402
    TritonAttentionBackend,
    TritonAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor  # noqa: E402
from vllm.v1.worker.gpu.input_batch import InputBuffers  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash import speculator as module  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator  # noqa: E402
from vllm.v1.worker.utils import AttentionGroup  # noqa: E402

import optimized  # noqa: E402
from optimized.skip_draft_rebuild import replays  # noqa: E402
from spantrace.recorder import Recorder  # noqa: E402
from spantrace.ring import as_array  # noqa: E402
from spantrace.vllm_adapter.hooks import hooks_for  # noqa: E402
from spantrace.vllm_adapter.installation import Installation  # noqa: E402
from spantrace.vllm_adapter.probes import Probes  # noqa: E402

CPU = torch.device("cpu")
DRAFTS, QUERIES, MOST, TOKENS, LONGEST = 3, 4, 8, 64, 96
CAPTURED = (1, 2, 4)
CHOSEN = next(name for name in ("skip-draft-rebuild", "stock-skip-draft-rebuild") if
              VERSION in optimized.discover()[name].versions())  # fmt: skip
SPEC = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32)


class OfTriton(TritonAttentionMetadataBuilder):  # type: ignore[misc]
    """A builder of a subclass, which may keep something between builds."""


class Plain(AttentionMetadataBuilder):  # type: ignore[misc]
    """A builder that says nothing about itself."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return SimpleNamespace(seq_lens=common_attn_metadata.seq_lens)


def settings(rswa: int | None) -> SimpleNamespace:
    """What Triton's builder reads of a server's configuration."""
    model = SimpleNamespace(
        rswa_window=rswa,
        get_num_attention_heads=lambda parallel: 4,
        get_num_kv_heads=lambda parallel: 2,
        get_head_size=lambda: 32,
    )
    return SimpleNamespace(
        model_config=model,
        parallel_config=None,
        speculative_config=SimpleNamespace(num_speculative_tokens=DRAFTS, parallel_drafting=True),
        scheduler_config=SimpleNamespace(max_num_seqs=MOST),
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY,
            cudagraph_capture_sizes=list(CAPTURED),
            static_forward_context={},
        ),
    )


class Graph:
    """A captured graph that counts its replays."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


class Drafter:
    """A drafter with these builders, one KV cache group each, and counts of what is done for it."""

    def __init__(self, *kinds: type, rswa: int | None = None, owner: type = module.DFlashSpeculator) -> None:
        self.builds, self.slots = 0, list[int]()
        self.given: list[Any] = []
        names = [[f"layers.{number}.attn"] for number in range(max(1, len(kinds)))]
        builders = [
            kind(SPEC, layers, settings(rswa), CPU) for kind, layers in zip(kinds, names[: len(kinds)], strict=True)
        ]
        for one in builders:
            one.build = self._counting(one.build)
        made: Any = object.__new__(owner)
        made.attn_groups = [
            [AttentionGroup(TritonAttentionBackend, layers, SPEC, number, metadata_builders=[one])]
            for number, (one, layers) in enumerate(zip(builders, names, strict=False))
        ] or [[]]
        made.kv_cache_config = KVCacheConfig(
            num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(layers, SPEC) for layers in names]
        )
        made.draft_attn_layer_names = {layer for layers in names for layer in layers} if kinds else set()
        made.supports_decode_metadata_update = all(
            getattr(one, "supports_draft_decode_metadata_update", False) for one in builders
        )
        self.speculator = made
        self._fill(len(names))
        self.graphs = self._capture()

    def _counting(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.builds += 1
            return build(*arguments, **named)

        return counted

    def _fill(self, groups: int) -> None:
        """What `propose` reads and writes, beside the attention."""
        made = self.speculator
        made.num_speculative_steps, made.num_query_per_req, made.sample_from_anchor = DRAFTS, QUERIES, False
        made.max_num_reqs, made.max_num_tokens = MOST, TOKENS
        made.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=LONGEST))
        if not hasattr(type(made), "max_model_len"):
            made.max_model_len = LONGEST
        made.dp_size, made.dp_rank, made.dcp_size, made.parallel_drafting_token_id = 1, 0, 1, 5
        made.eplb_state = made.pcp_manager = made.draft_logits = None
        made._layer_group_idx = made._aux_staging = made._num_rejected = None
        made._group_causal, made.draft_kv_cache_group_id = True, 0
        made.draft_kv_cache_group_ids = list(range(groups))
        made.model = SimpleNamespace(precompute_and_store_context_kv=lambda *arguments: None)
        made.hidden_states = torch.zeros(TOKENS, 8)
        made.context_positions = torch.zeros(TOKENS, dtype=torch.int64)
        made._context_slot_mappings = torch.zeros(groups, TOKENS, dtype=torch.int64)
        made.sample_indices = made.sample_pos = made.sample_idx_mapping = torch.zeros(MOST * DRAFTS, dtype=torch.int64)
        made.temperature, made.seeds = torch.zeros(MOST), torch.zeros(MOST, dtype=torch.int64)
        made.idx_mapping = torch.zeros(MOST, dtype=torch.int32)
        made.draft_tokens = torch.arange(MOST * DRAFTS).view(MOST, DRAFTS)
        made.arange, made.arange_np = torch.arange(MOST + 1, dtype=torch.int32), np.arange(MOST + 1, dtype=np.int32)
        made.draft_is_prefilling = torch.zeros(MOST, dtype=torch.bool)
        made.draft_max_seq_len = LONGEST
        made.input_buffers = InputBuffers(MOST, TOKENS, CPU)
        made.target_input_buffers = made.input_buffers
        made.block_tables = SimpleNamespace(
            input_block_tables=[torch.zeros(MOST, 6, dtype=torch.int32)] * groups,
            slot_mappings=torch.zeros(groups, TOKENS, dtype=torch.int64),
            kernel_block_sizes=[16] * groups,
            block_sizes=[16] * groups,
            cp_size=1,
            cp_rank=0,
            cp_interleave=1,
        )
        made._generate_draft = lambda *arguments, **named: self.given.append(arguments[2:4])

    def _capture(self) -> dict[Any, Graph]:
        """A manager of graphs for batches of up to so many requests."""
        manager: Any = object.__new__(DFlashCudaGraphManager)
        shapes = [BatchExecutionDescriptor(CUDAGraphMode.FULL, size * QUERIES, size, QUERIES) for size in CAPTURED]
        manager.graphs = {shape: Graph() for shape in shapes}
        manager._graphs_captured = True
        manager._resolve_effective_loras = lambda loras: 0
        manager._candidates = {
            (tokens, 0): [shape for shape in shapes if shape.num_tokens >= tokens]
            for tokens in range(1, max(CAPTURED) * QUERIES + 1)
        }
        self.speculator.query_cudagraph_manager = manager
        return dict(manager.graphs)

    def propose(self, requests: int = 3) -> dict[str, Any]:
        """One proposal: whether a graph was replayed, what was built, and whether all is as before."""
        made, tokens = self.speculator, requests * QUERIES
        before = self.builds, sum(graph.replays for graph in self.graphs.values()), len(self.slots)
        kept = made.kv_cache_config, made.supports_decode_metadata_update
        mapping = torch.arange(requests, dtype=torch.int32)
        batch = SimpleNamespace(
            num_reqs=requests,
            num_tokens=tokens,
            seq_lens_cpu_upper_bound=torch.full((requests,), 40, dtype=torch.int32),
            idx_mapping=mapping,
            query_start_loc=torch.arange(requests + 1, dtype=torch.int32) * QUERIES,
            num_scheduled_tokens=np.full(requests, QUERIES),
        )
        made.input_buffers.seq_lens[:requests] = 44
        counted = torch.ones(requests, dtype=torch.int32)
        last = torch.zeros(MOST, dtype=torch.int64)
        sampled = (counted, counted * 0, last, last, made.temperature, made.seeds)
        drafted = made.propose(batch, {}, {}, torch.zeros(tokens, 8), None, *sampled)
        return {
            "drafted": bool(torch.equal(drafted, made.draft_tokens[:requests])),
            "builds": self.builds - before[0],
            "replays": sum(graph.replays for graph in self.graphs.values()) - before[1],
            "slots": self.slots[before[2] :],
            "as before": kept[0] is made.kv_cache_config and kept[1] is made.supports_decode_metadata_update,
            "metadata": _shown(self.given.pop()) if self.given else None,
        }


def _shown(given: Any) -> list[Any]:
    """Metadata and slot mappings of an eager draft, in a form that can be compared."""
    metadata, slots = given
    lengths = {layer: one.seq_lens.tolist() for layer, one in (metadata or {}).items()}
    return [lengths, {layer: len(mapping) for layer, mapping in slots.items()}]


@contextmanager
def stand_ins_of_the_gpu(drafters: list[Drafter]) -> Iterator[None]:
    """The kernel of the input buffers is left out, and slot mappings made for these drafters are counted."""
    kernel, slots = module.prepare_dflash_inputs, module.build_slot_mappings_by_layer
    module.prepare_dflash_inputs = lambda *arguments: None

    def counted(mappings: Any, config: Any) -> Any:
        found = slots(mappings, config)
        drafters[-1].slots.append(len(found))
        return found

    module.build_slot_mappings_by_layer = counted
    try:
        yield
    finally:
        module.prepare_dflash_inputs, module.build_slot_mappings_by_layer = kernel, slots


Triton = TritonAttentionMetadataBuilder
SITUATIONS: dict[str, Callable[[], Drafter]] = {
    "triton": lambda: Drafter(Triton),
    "two groups": lambda: Drafter(Triton, Triton),
    "dspark": lambda: Drafter(Triton, owner=DSparkSpeculator),
    "no builder": lambda: Drafter(),
    "one of a subclass": lambda: Drafter(Triton, OfTriton),
    "the base's default": lambda: Drafter(Plain),
    "r-swa": lambda: Drafter(Triton, rswa=8),
}


def situation(make: Callable[[], Drafter]) -> dict[str, Any]:
    """Stock, switched on, and off again, with batches that have a graph and one that has none."""
    found: dict[str, Any] = {}
    drafter = make()
    with stand_ins_of_the_gpu([drafter]):
        for phase in ("stock", "on", "off"):
            if phase == "on":
                optimized.apply([CHOSEN], VERSION)
            elif phase == "off":
                (found["counts"],) = optimized.revert()
            found[phase] = [drafter.propose(requests) for requests in (1, 3, 4, 6)]
    return found


def spread() -> list[str | None]:
    """Why the metadata is needed, by the gate, where one of these holds: the context is spread, nothing does."""
    found = []
    for size, manager in ((2, None), (1, object()), (1, None)):
        made = Drafter(Triton).speculator
        made.block_tables.cp_size, made.pcp_manager = size, manager
        found.append(replays.why_needed(made, Triton))
    return found


def failing() -> dict[str, Any]:
    """The gate raises: stock answers, and the error is counted."""
    drafter, gate = Drafter(Triton), replays.why_needed
    optimized.apply([CHOSEN], VERSION)
    replays.why_needed = _planted
    try:
        with stand_ins_of_the_gpu([drafter]):
            proposed = drafter.propose()
    finally:
        replays.why_needed = gate
        (counts,) = optimized.revert()
    return {"proposed": proposed, "counts": counts}


def _planted(*_: Any) -> str | None:
    raise RuntimeError("planted")


def recorded(on_first: bool) -> dict[str, Any]:
    """A recording that begins while it is off or on, and runs on while it is switched five times and back."""
    drafter, recorder = Drafter(Triton), Recorder()
    hooks = Installation(recorder, Probes(recorder, lambda runner: None))
    switch = (optimized.revert, optimized.apply) if on_first else (optimized.apply, optimized.revert)
    with stand_ins_of_the_gpu([drafter]):
        if on_first:
            optimized.apply([CHOSEN], VERSION)
        hooks.plan([hook for hook in hooks_for(VERSION) if hook.span in ("draft.metadata", "draft.propose")])
        hooks.install()
        try:
            for number in range(10):
                turn = switch[number % 2]
                turn([CHOSEN], VERSION) if turn is optimized.apply else turn()
                drafter.propose()
        finally:
            hooks.remove()
            optimized.revert()
    spans = [hooks.sites[row & 0xFFFF][0] for row in as_array(recorder.rows.drain())[:, 0].tolist()]
    counted = {name: spans.count(name) for name in sorted(set(spans))}
    return {"rows": counted, "builds": drafter.builds, "errors": recorder.health()["first_error"]}


def capturing() -> bool:
    """Whether a graph that is captured while it is on still gets the update of its metadata."""
    drafter = Drafter(Triton)
    optimized.apply([CHOSEN], VERSION)
    try:
        with stand_ins_of_the_gpu([drafter]):
            drafter.propose(6)
            drafter.speculator._num_graph_context_tokens(2)
            return bool(drafter.speculator.supports_decode_metadata_update)
    finally:
        optimized.revert()


if __name__ == "__main__":
    facts: dict[str, Any] = {name: situation(make) for name, make in SITUATIONS.items()}
    facts |= {"spread": spread(), "failing": failing()}
    facts |= {"recorded, off first": recorded(on_first=False), "recorded, on first": recorded(on_first=True)}
    if CHOSEN.startswith("stock"):
        facts["capturing"] = capturing()
    print(json.dumps(facts))
