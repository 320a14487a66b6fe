"""What a drafter is given to draft from, row by row, and small buffers that a step of the target shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from optimized.bounded_padding.padding import UNIT, Padding
from optimized.cases import Case, Place

POISON, MASK, MODULUS, PAD = -(2**30), 7, 9973, -1
PADDING = {"ids": 0, "positions": 0, "is_padding": 1, "lengths": 0, "indices": 0, "places": 0, "rows": -1, "slots": PAD}
"""What lies behind the rows of the requests; behind their starts lies the end of the last one."""
DRAFTED = ("indices", "places", "rows")
"""Of these each request has a row for a draft."""


@dataclass(frozen=True)
class Shape:
    """The most requests and tokens of a step, K drafts for each request, and a cache for each group of layers."""

    drafts: int = 3
    most_requests: int = 16
    most_tokens: int = 64
    blocks: int = 8
    block_size: int = 4
    groups: int = 1

    @property
    def queries(self) -> int:
        """Rows of a request: its last token and the drafts."""
        return self.drafts + 1

    @property
    def longest(self) -> int:
        """Tokens that a request can hold."""
        return self.blocks * self.block_size


@dataclass(frozen=True)
class Load:
    """By step, over and over: the target's tokens of each request. Of a verification so many are `accepted`.

    Before the steps of these numbers a graph is captured, which writes to all buffers.
    """

    steps: tuple[tuple[int, ...], ...]
    accepted: int = 2
    captured: frozenset[int] = frozenset()


class Step:
    """A drafter's inputs are prepared behind the target's step, as vLLM's kernel does it; its buffers are kept."""

    def __init__(self, shape: Shape, load: Load, place: Place) -> None:
        random, device = torch.Generator().manual_seed(3), place.device
        self.shape, self.load, self.number, self.device = shape, load, 0, device
        self.lengths = torch.arange(1, shape.most_requests + 1).clamp(max=shape.longest - 1).to(device)
        order = torch.randperm(shape.groups * shape.most_requests * shape.blocks, generator=random)
        self.tables = order.view(shape.groups, shape.most_requests, shape.blocks).to(device)
        sizes = dict.fromkeys(PADDING, shape.most_tokens) | dict.fromkeys(DRAFTED, shape.most_requests * shape.drafts)
        sizes |= {"lengths": shape.most_requests, "starts": shape.most_requests + 1}
        made = {name: torch.zeros(size, dtype=torch.int64, device=device) for name, size in sizes.items()}
        made["slots"] = torch.zeros(shape.groups, shape.most_tokens, dtype=torch.int64, device=device)
        self.buffers = SimpleNamespace(**made)
        self.switch = Padding()
        self.prepare, self.capture = self.switch.preparing(prepare), self.switch.forgetting(self._write_all)
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The requests' lengths before the step and their blocks."""
        return {"lengths": self.lengths, "tables": self.tables}

    def poison(self) -> None:
        """Fill what the step writes: all slots, and the rows of its requests."""
        shape, requests = self.shape, len(self.tokens)
        of_each = {"starts": 1, "lengths": 1, "slots": shape.most_tokens} | dict.fromkeys(DRAFTED, shape.drafts)
        for name, buffer in vars(self.buffers).items():
            buffer[..., : requests * of_each.get(name, shape.queries)] = POISON

    def reference(self) -> dict[str, Tensor]:
        """Request by request and row by row, and all padding to the end of every buffer."""
        self._before(self._write_all)
        for group in range(self.shape.groups if self.tokens else 0):
            self._written_out(group)
        return self._results()

    def fast(self) -> dict[str, Tensor]:
        """By the call that pads up to its bounds, with the optimization around it."""
        self._before(self.capture)
        shape, at = self.shape, self.buffers
        batch = SimpleNamespace(num_reqs=len(self.tokens), num_tokens_after_padding=sum(self.tokens), step=self)
        bounds = shape.queries, shape.drafts, shape.most_requests, shape.most_tokens
        for group in range(shape.groups if self.tokens else 0):
            self.prepare(at, at.slots[group], at.indices, at.places, at.rows, batch, group, *bounds)
        return self._results()

    def next(self) -> None:
        """Add what was accepted, as far as the tables reach."""
        grown = self.ends - self.lengths
        room = self.shape.longest - self.shape.queries
        self.lengths = torch.where(grown > 0, self.ends.clamp(max=room), self.lengths)
        self.number += 1
        self._draw()

    def slots_of(self, group: int, row: Tensor, at: Tensor) -> Tensor:
        """Where the cache of a group has the tokens at these places of these requests."""
        size = self.shape.block_size
        return self.tables[group, row, (at // size).clamp(max=self.shape.blocks - 1)] * size + at % size

    def _draw(self) -> None:
        """This step's tokens, and where each request ends without those that are rejected."""
        self.tokens = self.load.steps[self.number % len(self.load.steps)]
        kept = [min(count, self.load.accepted + 1) if count <= self.shape.queries else count for count in self.tokens]
        self.ends = self.lengths.clone()
        self.ends[: len(kept)] += torch.tensor(kept, dtype=torch.int64, device=self.device)

    def _before(self, capture: Any) -> None:
        """What happens to the buffers before the drafter's turn."""
        if self.number in self.load.captured:
            capture()
        for group in range(self.shape.groups):
            slots = [
                self.slots_of(group, torch.tensor(row, device=self.device), self.lengths[row] + at)
                for row, count in enumerate(self.tokens)
                for at in range(count)
            ]
            if slots:
                self.buffers.slots[group] = PAD
                self.buffers.slots[group, : len(slots)] = torch.stack(slots)

    def _write_all(self) -> None:
        for name, buffer in vars(self.buffers).items():
            buffer.fill_(PAD if name == "slots" else 5)

    def _written_out(self, group: int) -> None:
        shape, at = self.shape, self.buffers
        requests, ends, width = len(self.tokens), self.ends.tolist(), shape.queries
        for row, end in enumerate(ends[:requests]):
            at.starts[row], at.lengths[row] = row * width, min(end + width, shape.longest)
            for query in range(width):
                cell, place, which = row * width + query, torch.tensor(end + query), torch.tensor(row)
                at.ids[cell] = MASK if query else end * 13 % MODULUS
                at.positions[cell], at.is_padding[cell] = min(end + query, shape.longest - 1), 0
                at.slots[group, cell] = self.slots_of(group, which.to(self.device), place.to(self.device))
                if query:
                    draft = row * shape.drafts + query - 1
                    at.indices[draft], at.places[draft], at.rows[draft] = cell, end + query, row
        at.starts[requests:] = requests * width
        at.lengths[requests:] = PADDING["lengths"]
        for name in DRAFTED:
            getattr(at, name)[requests * shape.drafts :] = PADDING[name]
        for name in ("ids", "positions", "is_padding"):
            getattr(at, name)[requests * width :] = PADDING[name]
        at.slots[group, requests * width :] = PAD

    def _results(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in vars(self.buffers).items()}


def prepare(
    input_buffers: Any,
    query_slot_mapping: Tensor,
    sample_indices: Tensor,
    sample_pos: Tensor,
    sample_idx_mapping: Tensor,
    input_batch: Any,
    group: int,
    num_query_per_req: int,
    num_speculative_steps: int,
    max_num_reqs: int,
    max_num_tokens: int,
) -> None:
    """In the place of vLLM's kernel: the rows of all requests at once, and the padding up to the bounds it is given."""
    step, requests, at = input_batch.step, input_batch.num_reqs, input_buffers
    rows = torch.arange(requests, device=step.device)
    offset = torch.arange(num_query_per_req, device=step.device)
    places, ends = step.ends[:requests, None] + offset, step.ends[:requests]
    ids = torch.where(offset == 0, places * 13 % MODULUS, MASK)
    _put(at.starts, rows * num_query_per_req, max_num_reqs + 1, requests * num_query_per_req)
    _put(at.lengths, (ends + num_query_per_req).clamp(max=step.shape.longest), max_num_reqs, 0)
    cells = (rows[:, None] * num_query_per_req + offset)[:, 1:]
    drafted = (sample_indices, cells, 0), (sample_pos, places[:, 1:], 0), (sample_idx_mapping, rows[:, None], -1)
    for buffer, values, padding in drafted:
        _put(buffer, values.expand_as(cells), max_num_reqs * num_speculative_steps, padding)
    slots = step.slots_of(group, rows[:, None], places)
    positions = places.clamp(max=step.shape.longest - 1)
    of_queries = (at.ids, ids, 0), (at.positions, positions, 0), (at.is_padding, places * 0, 1)
    for buffer, values, padding in (*of_queries, (query_slot_mapping, slots, PAD)):
        _put(buffer, values, max_num_tokens, padding)


def _put(buffer: Tensor, values: Tensor, bound: int, padding: int) -> None:
    buffer[: values.numel()] = values.flatten()
    buffer[values.numel() : bound] = padding


def cases() -> list[Case]:
    """All and none accepted, requests that come and go, prefills, odd sizes, two groups, a capture, 20 steps."""

    def case(name: str, load: Load, shape: Shape | None = None, steps: int = 5) -> Case:
        return Case(name, lambda place: Step(shape or Shape(), load, place), steps)

    three = (4, 4, 4)
    mixed = (three, (4, 4, 30), three, three, (4,), (4,), (50,), (4, 4), (4, 4), (1, 2))
    return [
        case("all accepted", Load((three,), accepted=3)),
        case("none accepted", Load((three,), accepted=0)),
        case("idle requests, and padded ones", Load(((4, 4, 4, 4), three, three, (4,)))),
        case("every row idle in between", Load((three, (), three, three, ()))),
        case("odd shapes", Load(((6, 6), (6, 6), (6,), (6,)), 4), Shape(5, blocks=5, block_size=3)),
        case("bounds that are no multiples of 16", Load((three,)), Shape(most_requests=7, most_tokens=61)),
        case("a prefill between decodes", Load((three, three, (4, 4, 40), three, three))),
        case("more requests, then fewer", Load(((4,) * 9, (4,) * 9, (4,) * 2, (4,) * 2, (4,) * 9))),
        case("capacity reached", Load(((4,) * UNIT,), 3), steps=10),
        case("two groups", Load((three, three, (4, 4), (4, 4))), Shape(groups=2)),
        case("a graph is captured in between", Load((three,), captured=frozenset({2}))),
        case("20 steps", Load(mixed, 1), Shape(most_requests=32, most_tokens=128, groups=2), steps=20),
    ]
