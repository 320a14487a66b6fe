"""How a batch is sorted into decodes and prefills, request by request, and which state blocks each request has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.uniform_decode_metadata.metadata import Offsets, why_not

POISON = -(2**30)


@dataclass(frozen=True)
class Shape:
    """B requests of K drafts each, and in each of G groups a table of so many blocks of so many tokens."""

    batch: int
    drafts: int
    blocks: int = 12
    block_size: int = 4
    groups: int = 1


class Step:
    """Requests of which row r advances by advances[(r + step) mod n] tokens; 0 is padding, None a prefill of 9."""

    def __init__(self, shape: Shape, advances: tuple[int | None, ...], start: int, place: Place) -> None:
        self.shape, self.pattern, self.step, self.device = shape, advances, 0, place.device
        random = torch.Generator().manual_seed(3)
        table = torch.randint(1, 1000, (shape.groups, shape.batch, shape.blocks), generator=random, dtype=torch.int32)
        self.tables = table.to(place.device)
        self.lengths = torch.full((shape.batch,), start, dtype=torch.int32, device=place.device)
        self.split = torch.zeros(4, dtype=torch.int64)
        width = shape.groups, shape.batch, 1 + shape.drafts
        self.states = torch.zeros(width, dtype=torch.int32, device=place.device)
        self.offsets = Offsets()
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The queries, what prefills, the contexts and their blocks."""
        return {name: getattr(self, name) for name in ("queries", "is_prefilling", "lengths", "tables")}

    def poison(self) -> None:
        """Fill both results."""
        self.split.fill_(POISON)
        self.states.fill_(POISON)

    def reference(self) -> dict[str, Tensor]:
        """Decodes are the requests before the first that prefills or has too long a query."""
        queries, threshold = self.queries.tolist(), 1 + self.shape.drafts
        sorts = [query > threshold or flag for query, flag in zip(queries, self.is_prefilling.tolist(), strict=True)]
        decodes = sorts.index(True) if True in sorts else len(sorts)
        tokens = sum(queries[:decodes])
        self.split[:] = torch.tensor([decodes, len(queries) - decodes, tokens, sum(queries) - tokens])
        for row, length in enumerate(self.lengths.tolist()):
            first = max((length - 1) // self.shape.block_size, 0)
            self.states[:, row] = self.tables[:, row, first : first + 1 + self.shape.drafts]
        return self._results()

    def fast(self) -> dict[str, Tensor]:
        """The shortcut where it is taken, the offsets kept, and their rows shared by the groups."""
        if why_not(self.is_prefilling, int(self.queries.max()), 1 + self.shape.drafts):
            self.reference()
        else:
            self.split[:] = torch.tensor([len(self.queries), 0, int(self.queries.sum()), 0])
        rows = self.offsets.rows(self.lengths, self.shape.block_size, 1 + self.shape.drafts)
        for table, states in zip(self.tables, self.states, strict=True):
            states[:] = torch.gather(table, 1, rows)
        return self._results()

    def next(self) -> None:
        """Advance the contexts as far as their tables reach."""
        longest = (self.shape.blocks - self.shape.drafts) * self.shape.block_size
        self.lengths = (self.lengths + self.advances).clamp(max=longest)
        self.step += 1
        self._draw()

    def _results(self) -> dict[str, Tensor]:
        return {"split": self.split.clone(), "states": self.states.clone()}

    def _draw(self) -> None:
        rows = [self.pattern[(row + self.step) % len(self.pattern)] for row in range(self.shape.batch)]
        rows.sort(key=lambda advance: advance is None)
        queries = [9 if advance is None else (1 + self.shape.drafts) * (advance > 0) for advance in rows]
        self.queries = torch.tensor(queries, dtype=torch.int32)
        self.is_prefilling = torch.tensor([advance is None for advance in rows])
        advances = [9 if advance is None else advance for advance in rows]
        self.advances = torch.tensor(advances, dtype=torch.int32, device=self.device)


def cases() -> list[Case]:
    """All and none accepted, idle rows, prefills among decodes, odd shapes, the table's end, groups, and 20 steps."""

    def case(name: str, shape: Shape, advances: tuple[int | None, ...], start: int = 7, steps: int = 1) -> Case:
        return Case(name, lambda place: Step(shape, advances, start, place), steps)

    return [
        case("all accepted", Shape(4, 3), (4,), steps=3),
        case("none accepted", Shape(4, 3), (1,), steps=3),
        case("idle rows", Shape(5, 3), (0, 2, 0)),
        case("every row idle, no context", Shape(3, 3), (0,), start=0),
        case("prefills after decodes", Shape(5, 2), (3, None, 1)),
        case("prefills only", Shape(3, 2), (None,)),
        case("odd shapes", Shape(7, 5, blocks=13, block_size=3), (1, 6, 2)),
        case("no drafts", Shape(3, 0), (1,)),
        case("capacity reached", Shape(3, 3), (4,), start=36, steps=2),
        case("five groups", Shape(3, 3, groups=5), (4, 1, 2), steps=3),
        case("groups with prefills", Shape(4, 2, groups=2), (3, None), steps=2),
        case("20 steps", Shape(4, 3, blocks=40, groups=2), (1, 4, None, 2, 3), start=0, steps=20),
    ]
