"""A drafter's inputs are prepared by a vLLM's own kernels: python padding_of_this_version.py VERSION ITS-SOURCES.

propose(), its two kernels, the block tables and the buffers are vLLM's own, interpreted on the CPU; what the drafter
does with its inputs is left out. Prints, of the same steps with the optimization and without it, where any buffer
differs, as JSON.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION, TREE = sys.argv[1:]
sys.path.insert(0, TREE)
sys.path.append(str(Path(__file__).parents[1]))

import drafter_of_this_version as small  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from stand_ins import planted  # noqa: E402
from triton.runtime.interpreter import interpreter_builder  # noqa: E402
from vllm.v1.worker.gpu import buffer_utils  # noqa: E402
from vllm.v1.worker.gpu.block_table import BlockTables  # noqa: E402
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager  # noqa: E402
from vllm.v1.worker.gpu.input_batch import InputBuffers  # noqa: E402
from vllm.v1.worker.gpu.model_runner import GPUModelRunner  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash import cudagraph  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

import optimized  # noqa: E402
from optimized.bounded_padding import padding  # noqa: E402

ID = "bounded-padding"
CPU = torch.device("cpu")
MOST, TOKENS, BLOCKS, BLOCK_SIZE, QUERIES = 32, 128, 6, 16, small.QUERIES
small.MOST, small.TOKENS, small.LONGEST = MOST, TOKENS, BLOCKS * BLOCK_SIZE
SMALLER = padding.smaller


class InPlainMemory:
    """In the place of memory that a GPU sees."""

    def __init__(self, size: Any, dtype: torch.dtype) -> None:
        self.cpu = self.uva = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()


interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)
buffer_utils.UvaBuffer = InPlainMemory
buffer_utils.is_uva_available = lambda: not hasattr(buffer_utils, "NonUvaBuffer")


class Event(NamedTuple):
    """A step of the target and the drafter, with the tokens of each request; or what else writes to the buffers."""

    tokens: tuple[int, ...] = ()
    other: str = ""


class Side:
    """One server's buffers, filled with what no step leaves behind."""

    def __init__(self, groups: int, owner: type) -> None:
        drafter = small.Drafter(*[small.Triton] * groups, owner=owner)
        self.propose, self.made, self.random = drafter.speculator.propose, drafter.speculator, np.random.default_rng(7)
        of_version = inspect.signature(BlockTables).parameters
        sizes = {"kernel_block_sizes": [BLOCK_SIZE] * groups} if "kernel_block_sizes" in of_version else {}
        self.tables = BlockTables([BLOCK_SIZE] * groups, MOST, TOKENS, [BLOCKS] * groups, CPU, **sizes)
        for group, (held, given) in enumerate(
            zip(self.tables.block_tables, self.tables.input_block_tables, strict=True)
        ):
            blocks = self.random.permutation(groups * MOST * BLOCKS).reshape(groups, MOST, BLOCKS)[group]
            for table in (held.gpu, given):
                table.copy_(torch.from_numpy(blocks).int())
        self.target = InputBuffers(MOST, TOKENS, CPU)
        self.lengths = np.arange(MOST) % 40
        self.made.block_tables, self.made.target_input_buffers = self.tables, self.target
        for name in ("sample_indices", "sample_pos", "sample_idx_mapping"):
            setattr(self.made, name, torch.zeros(MOST * small.DRAFTS, dtype=torch.int64))
        self.made.query_cudagraph_manager.capture = self._capture
        for buffer in self.buffers().values():
            buffer.copy_(torch.from_numpy(self.random.integers(0, 99, buffer.shape)))

    def buffers(self) -> dict[str, Any]:
        """All that a drafter's step writes of its inputs, whole."""
        made = self.made
        names = ("sample_indices", "sample_pos", "sample_idx_mapping", "temperature", "seeds", "context_positions")
        own = vars(made.input_buffers) | {name: getattr(made, name) for name in names}
        own |= {"contexts": made._context_slot_mappings, "slots": self.tables.slot_mappings}
        return {name: one for name, one in own.items() if torch.is_tensor(one)}

    def step(self, tokens: tuple[int, ...]) -> None:
        """The target's slots, and the drafter's turn after it."""
        requests, counts, total = len(tokens), np.array(tokens, dtype=np.int32), sum(tokens)
        starts = np.concatenate([[0], np.cumsum(counts)])
        places = np.concatenate([self.lengths[row] + np.arange(count) for row, count in enumerate(tokens)])
        self.target.positions[:total] = torch.from_numpy(places)
        self.target.query_start_loc.fill_(total)[: requests + 1] = torch.from_numpy(starts)
        batch = SimpleNamespace(
            num_reqs=requests,
            num_tokens=total,
            num_tokens_after_padding=min(TOKENS, -(-total // 8) * 8),
            seq_lens_cpu_upper_bound=torch.from_numpy(self.lengths[:requests] + counts).int(),
            idx_mapping=torch.from_numpy(self.random.permutation(MOST)[:requests]),
            query_start_loc=self.target.query_start_loc[: requests + 1],
            num_scheduled_tokens=counts,
            positions=self.target.positions,
        )
        self.tables.compute_slot_mappings(
            batch.idx_mapping, batch.query_start_loc, batch.positions, num_tokens_padded=batch.num_tokens_after_padding
        )
        rejected = np.where(counts > QUERIES, 0, self.random.integers(0, QUERIES, requests) % counts)
        sampled, last = self.random.integers(0, 2, requests), torch.from_numpy(self.random.integers(0, 999, (2, MOST)))
        counted = torch.from_numpy(np.stack([sampled, rejected])).int()
        of_request = torch.rand(MOST, generator=torch.Generator().manual_seed(1)), torch.arange(MOST)
        self.propose(batch, {}, {}, torch.zeros(total, 8), None, *counted, *last, *of_request)
        grown = self.lengths[:requests] + counts - rejected
        self.lengths[:requests] = np.where(grown + 40 > BLOCKS * BLOCK_SIZE, 3, grown)

    def other(self, name: str) -> None:
        """Graphs are captured; or a function is called, as far as it gets on nothing, behind which anything may lie."""
        if name == "capture":
            self.made.capture()
            return
        with suppress(AttributeError):
            OTHERS[name]()
        for buffer in self.buffers().values():
            buffer.fill_(5)

    def _capture(self, *_: Any, **__: Any) -> None:
        made = self.made
        for requests in (24, 20):
            cudagraph._prepare_dflash_inputs_to_capture(
                num_reqs=requests,
                num_tokens=requests * QUERIES,
                input_buffers=made.input_buffers,
                block_tables=self.tables,
                attn_groups=made.attn_groups,
                kv_cache_config=made.kv_cache_config,
                max_model_len=BLOCKS * BLOCK_SIZE,
                skip_attn=True,
                causal=True,
            )

    def after(self, event: Event) -> dict[str, Any]:
        """All buffers after it."""
        self.other(event.other) if event.other else self.step(event.tokens)
        return {name: buffer.clone() for name, buffer in self.buffers().items()}


OTHERS: dict[str, Callable[[], object]] = {
    "capture": Side._capture,
    "before a capture": lambda: CudaGraphManager.needs_capture(SimpleNamespace()),
    "other tables": lambda: GPUModelRunner.initialize_kv_cache(SimpleNamespace(), None),
    "after sleep": lambda: Worker.wake_up(SimpleNamespace()),
}


def events(count: int) -> tuple[Event, ...]:
    """Verifications and prefills of as many requests as before or of others, and now and then something else."""
    chosen, found, requests = random.Random(11), list[Event](), 3
    for number in range(count):
        if chosen.random() < 0.35:
            requests = chosen.choice([1, 2, 3, 5, 8, 17])
        tokens = [QUERIES] * requests
        if requests < 9 and chosen.random() < 0.4:
            tokens[chosen.randrange(requests)] = chosen.randint(1, 40)
        found.append(Event(tuple(tokens)))
        if number % 6 == 5:
            found += [Event(other=list(OTHERS)[number // 6 % 4]), found[-1]]
    return tuple(found)


def hits_of(steps: tuple[Event, ...]) -> int:
    """As many steps as follow one of as many requests with nothing in between, and leave some of the buffers unused."""
    pairs = [(len(one.tokens), len(other.tokens), sum(other.tokens)) for one, other in pairwise(steps)]
    return sum(before == now > 0 and SMALLER(TOKENS, tokens) < TOKENS for before, now, tokens in pairs)


@cache
def stock(steps: tuple[Event, ...], groups: int, owner: type) -> list[dict[str, Any]]:
    """What vLLM by itself leaves in the buffers after each of them."""
    side = Side(groups, owner)
    return [side.after(event) for event in steps]


def side_by_side(steps: tuple[Event, ...], groups: int = 1, owner: type = small.module.DFlashSpeculator) -> Any:
    """The same steps in stock and with the optimization: which buffers differ, after which of them."""
    wanted, ours = stock(steps, groups, owner), Side(groups, owner)
    optimized.apply([ID], VERSION)
    try:
        got = [ours.after(event) for event in steps]
    finally:
        (counts,) = optimized.revert()
    differ = [
        [number, name]
        for number, pair in enumerate(zip(wanted, got, strict=True))
        for name in pair[0]
        if not torch.equal(pair[0][name], pair[1][name])
    ]
    return {"counts": counts, "differ": differ, "hits": groups * hits_of(steps), "steps": len(steps)}


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "one unit too few": (padding, "smaller", lambda most, needed: max(16, SMALLER(most, needed) - 16)),
    "nothing is forgotten": (padding.Padding, "forgetting", lambda _, original: original),
    "any number of requests": (padding.Known, "why_not", lambda known, asked: None if known.slots else "first"),
    "an error": (padding.Known, "why_not", planted),
}


THREE, MORE = Event((QUERIES,) * 3), Event((QUERIES,) * 17)
TELLING = (THREE, THREE, Event((4, 4, 40)), Event(other="capture"), THREE, MORE, THREE)
"""Few steps in which each fault shows: a prefill, a capture, another number of requests."""


def with_a_fault(name: str) -> Any:
    """What differs where the optimization is wrong in this way."""
    owner, attribute, wrong = FAULTS[name]
    right = getattr(owner, attribute)
    setattr(owner, attribute, wrong)
    try:
        return side_by_side(TELLING)
    finally:
        setattr(owner, attribute, right)


if __name__ == "__main__":
    facts = {
        "dflash": side_by_side(events(24)),
        "two groups": side_by_side(events(12), groups=2),
        "dspark": side_by_side(events(6), owner=small.DSparkSpeculator),
        "no fault": side_by_side(TELLING),
    }
    print(json.dumps(facts | {name: with_a_fault(name) for name in FAULTS}))
