"""A target's metadata is built by a vLLM's own model states: python target_groups_of_this_version.py VERSION SOURCES.

The model states, the function that they build with, the batch, Triton's builders, their groups and the drafter are
vLLM's own; a builder that keeps all it is given stands in for Mamba's. Every situation is run without the switch and
with it, from the same seeds. Prints what happened as JSON.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import weakref
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION, TREE = sys.argv[1:]
sys.path.insert(0, TREE)
sys.path.append(str(Path(__file__).parents[1]))

import drafter_of_this_version as small  # noqa: E402
import torch  # noqa: E402
from stand_ins import planted  # noqa: E402
from vllm.config import VllmConfig  # noqa: E402
from vllm.config.compilation import CUDAGraphMode  # noqa: E402
from vllm.config.parallel import ParallelConfig  # noqa: E402
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend  # noqa: E402
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers  # noqa: E402
from vllm.v1.worker.gpu.model_runner import GPUModelRunner  # noqa: E402
from vllm.v1.worker.gpu.model_states.default import DefaultModelState  # noqa: E402
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState  # noqa: E402
from vllm.v1.worker.utils import AttentionGroup  # noqa: E402

import optimized  # noqa: E402
from optimized.target_groups_only import groups as ours  # noqa: E402

ID = "target-groups-only"
CPU, MOST, TOKENS, BLOCKS, LONGEST = torch.device("cpu"), small.MOST, small.TOKENS, 6, small.LONGEST
Layout = tuple[tuple[str, ...], ...]
"""By KV cache its groups, each one a letter a layer: t and m of the target, m for Mamba's builder, d of the drafter."""
APART: Layout = (("tt",), ("d",))
HYBRID: Layout = (("m", "m"), ("d",), ("t", "dd"), ("m",))
RIGHT = ours.without
ON = (False, True, True, True, False, True, True)
"""By step, whether it is on."""


class Everything(small.Plain):  # type: ignore[misc]
    """A builder whose metadata is all that it was given."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **more: Any) -> Any:
        return SimpleNamespace(common=common_attn_metadata, **more)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        return SimpleNamespace(captured=common_attn_metadata)


class OwnState(DefaultModelState):  # type: ignore[misc]
    """A model state of a model's."""


class OwnDrafter(small.module.DFlashSpeculator):  # type: ignore[misc]
    """A drafter of a subclass."""


@dataclass(frozen=True)
class Situation:
    """A target and a drafter, the server's configuration, and what its steps are."""

    layout: Layout = APART
    state: type = DefaultModelState
    drafter: type = small.module.DFlashSpeculator
    parallel: tuple[tuple[str, int], ...] = ()
    connector: str | None = None
    captures: bool = False
    dummy: bool = False
    fault: Callable[..., Any] | None = None


class Server:
    """One runner's groups, model state and drafter."""

    def __init__(self, chosen: Situation) -> None:
        self.chosen, self.random = chosen, random.Random(3)
        self.buffers = InputBuffers(MOST, TOKENS, CPU)
        self.tables = torch.zeros(len(chosen.layout), MOST, BLOCKS, dtype=torch.int32)
        self.slots = torch.zeros(len(chosen.layout), TOKENS, dtype=torch.int64)
        self.groups = [
            [self._group(letters, cache, at) for at, letters in enumerate(groups)]
            for cache, groups in enumerate(chosen.layout)
        ]
        names = [[name for group in groups for name in group.layer_names] for groups in self.groups]
        specs = [KVCacheGroupSpec(one, small.SPEC) for one in names]
        self.config = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=specs)
        self.drafts = {name for one in names for name in one if name.startswith("d")}
        self.drafter = small.Drafter(small.Triton, owner=chosen.drafter)
        self.drafter.speculator.draft_attn_layer_names = self.drafts
        self.state = self._state()
        self.runner: Any = object.__new__(GPUModelRunner)
        self.runner.model_state = self.state
        self.runner.attn_groups, self.runner.speculator = self.groups, self.drafter.speculator
        config = SimpleNamespace(parallel_config=ParallelConfig(), kv_transfer_config=chosen.connector)
        for name, value in chosen.parallel:
            object.__setattr__(config.parallel_config, name, value)
        self.runner.vllm_config, self.runner.pcp_manager, self.runner.max_model_len = config, None, LONGEST
        self.runner.req_states = SimpleNamespace(num_computed_tokens=SimpleNamespace(gpu=None))
        self.runner.block_tables = SimpleNamespace(
            gather_block_tables=lambda *_, **__: tuple(self.tables),
            compute_slot_mappings=lambda *_, **__: self.slots,
        )

    def _group(self, letters: str, cache: int, at: int) -> AttentionGroup:
        names = [f"{letter}.{cache}.{at}.{place}" for place, letter in enumerate(letters)]
        kind = Everything if "m" in letters else small.Triton
        builder = kind(small.SPEC, names, small.settings(None), CPU)
        return AttentionGroup(TritonAttentionBackend, names, small.SPEC, cache, metadata_builders=[builder])

    def _state(self) -> Any:
        made: Any = object.__new__(self.chosen.state)
        made.model_config = SimpleNamespace(max_model_len=LONGEST, is_mm_prefix_lm=False)
        made.vllm_config = SimpleNamespace(num_speculative_tokens=small.DRAFTS, model_config=made.model_config)
        if not hasattr(type(made), "max_model_len"):
            made.max_model_len = LONGEST
        made.supports_mm_inputs, made.encoder_cache, made._align_mode, made.recoverssm = False, None, False, None
        made.num_accepted_tokens_gpu = torch.arange(1, MOST + 1, dtype=torch.int32)
        if self.chosen.state is MambaHybridModelState and VERSION >= "0.29.0":
            from vllm.v1.worker.gpu.model_states.recoverssm import RecoverSSMState

            made.recoverssm = RecoverSSMState()
        return made

    def step(self) -> dict[str, Any]:
        """The target's metadata by layer, and then the drafter's turn."""
        requests = self.random.randint(1, 4)
        tokens = requests * self.random.choice((1, small.QUERIES, 7))
        batch = InputBatch.make_dummy(requests, tokens, self.buffers)
        lengths = torch.tensor([self.random.randint(7, 60) for _ in range(requests)], dtype=torch.int32)
        batch.seq_lens[:requests] = lengths
        batch.seq_lens_cpu_upper_bound = lengths.clone()
        batch.is_prefilling_np[:] = [self.random.random() < 0.3 for _ in range(requests)]
        draw = torch.Generator().manual_seed(self.random.randrange(999))
        self.tables.copy_(torch.randint(0, 8, self.tables.shape, generator=draw))
        self.slots.copy_(torch.randint(0, 99, self.slots.shape, generator=draw))
        mode = self.random.choice((CUDAGraphMode.NONE, CUDAGraphMode.FULL))
        tables, slots = self.runner.prepare_attn(batch) if not self.chosen.dummy else (tuple(self.tables), self.slots)
        given = batch, mode, tuple(table[:requests] for table in tables), slots[:, :tokens]
        found = self.state.prepare_attn(*given, self.groups, self.config, for_capture=self.chosen.captures)
        with small.stand_ins_of_the_gpu([self.drafter]):
            drafted = self.drafter.propose(requests)
        return {
            "layers": {name: plain(one) for name, one in found.items() if name not in self.drafts},
            "own": [plain(vars(one.metadata_builders[0])) for one in self.kept()],
            "drafts": sorted(self.drafts & set(found)),
            "drafted": drafted,
        }

    def kept(self) -> list[AttentionGroup]:
        """The groups that have a layer of the target's."""
        return [one for groups in self.groups for one in groups if not set(one.layer_names) <= self.drafts]


def plain(value: Any, depth: int = 0) -> Any:
    """Something that two of which can be compared; floating point is scratch memory, which nobody has written yet."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape) if value.is_floating_point() else value.tolist()]
    if is_dataclass(value) or isinstance(value, SimpleNamespace):
        names = [one.name for one in fields(value)] if is_dataclass(value) else list(vars(value))
        return {name: plain(getattr(value, name, None), depth + 1) for name in names} if depth < 4 else "deep"
    if isinstance(value, dict):
        return {str(name): plain(one, depth + 1) for name, one in value.items()} if depth < 4 else "deep"
    return value if isinstance(value, int | float | str | bool | None) else type(value).__name__


def steps_of(server: Server, on: tuple[bool, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A server's steps, with it or without, and what was counted each time that it was on."""
    found, counts = [], list[dict[str, Any]]()
    try:
        for now in on:
            if now and not optimized.counts():
                optimized.apply([ID], VERSION)
            elif not now:
                counts += optimized.revert()
            found.append(server.step())
    finally:
        counts += optimized.revert()
    return found, counts


def run(chosen: Situation) -> dict[str, Any]:
    """The same steps with it and without: which differ, in which the drafter's layers are missing, what was counted."""
    stock, server = Server(chosen), Server(chosen)
    wanted, _ = steps_of(stock, (False,) * len(ON))
    ours.without = chosen.fault or RIGHT
    try:
        got, counts = steps_of(server, ON)
    finally:
        ours.without = RIGHT
    everything = [step.pop("drafts") for step in wanted]
    assert everything == [sorted(server.drafts)] * len(ON)
    return {
        "left out": [not step.pop("drafts") for step in got],
        "unlike": [number for number, pair in enumerate(zip(wanted, got, strict=True)) if pair[0] != pair[1]],
        "layers": [len(step["layers"]) for step in wanted],
        "counts": counts,
    }


def dropping(groups: Any, layers: Any) -> Any:
    """Leaves out a group of the target's too."""
    return [[], *RIGHT(groups, layers)[1:]]


def gone() -> dict[str, Any]:
    """Of a server that is gone nothing is held."""
    optimized.apply([ID], VERSION)
    try:
        server = Server(Situation())
        server.step()
        server.step()
        seen = [weakref.ref(server.drafter.speculator), weakref.ref(server.runner)]
        del server
        gc.collect()
        return {"alive": sum(one() is not None for one in seen), "hits": optimized.counts()[0]["hits"]}
    finally:
        optimized.revert()


SITUATIONS = {
    "a cache each": Situation(),
    "a group each": Situation((("tt", "d"),)),
    "dspark": Situation(drafter=small.DSparkSpeculator),
    "hybrid": Situation(HYBRID, MambaHybridModelState),
    "one group of both": Situation((("td",), ("t",))),
    "captures": Situation(captures=True),
    "a dummy run": Situation(dummy=True),
    "a strange state": Situation(state=OwnState),
    "a strange drafter": Situation(drafter=OwnDrafter),
    "a connector": Situation(connector="one"),
    "two microbatches": Situation(parallel=(("ubatch_size", 2),)),
    "dual batches": Situation(parallel=(("enable_dbo", True),)),
    "spread prefills": Situation(parallel=(("prefill_context_parallel_size", 2),)),
    "spread decodes": Situation(parallel=(("decode_context_parallel_size", 2),)),
    "an error": Situation(fault=planted),
    "a target's group dropped": Situation(fault=dropping),
}

if __name__ == "__main__":
    facts: dict[str, Any] = {name: run(chosen) for name, chosen in SITUATIONS.items()}
    facts["gone"] = gone()
    facts["configured"] = "kv_transfer_config" in {one.name for one in fields(VllmConfig)}
    print(json.dumps(facts))
