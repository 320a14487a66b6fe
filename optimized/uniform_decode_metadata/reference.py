"""How a batch is sorted into decodes and prefills, request by request, and what its groups' buffers must hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.launching import why_no_kernels
from optimized.uniform_decode_metadata.ahead import Ahead, Group
from optimized.uniform_decode_metadata.metadata import Offsets, why_not

POISON = -(2**30)


@dataclass(frozen=True)
class Shape:
    """B requests of K drafts each, and in each of G groups a table of so many blocks of so many tokens.

    A request's state blocks are those from its last token's on, or the first ones where they are not `aligned`.
    """

    batch: int
    drafts: int
    blocks: int = 12
    block_size: int = 4
    groups: int = 1
    aligned: bool = True


class Step:
    """Requests of which row r advances by advances[(r + step) mod n] tokens; 0 is padding, None a prefill of 9."""

    def __init__(self, shape: Shape, advances: tuple[int | None, ...], start: int, place: Place) -> None:
        self.shape, self.pattern, self.step, self.device = shape, advances, 0, place.device
        random = torch.Generator().manual_seed(3)
        table = torch.randint(1, 1000, (shape.groups, shape.batch, shape.blocks), generator=random, dtype=torch.int32)
        self.tables = table.to(place.device)
        self.lengths = torch.full((shape.batch,), start, dtype=torch.int32, device=place.device)
        self.split = torch.zeros(4, dtype=torch.int64)
        rows = shape.groups, shape.batch
        self.states = torch.zeros(*rows, 1 + shape.drafts, dtype=torch.int32, device=place.device)
        self.buffers, self.counts = torch.zeros_like(self.states), torch.zeros_like(self.states[:, :, 0])
        self.offsets, self.ahead = Offsets(), Ahead()
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The queries, what prefills, the contexts, their blocks and what was accepted."""
        return {name: getattr(self, name) for name in ("queries", "is_prefilling", "lengths", "tables", "accepted")}

    def poison(self) -> None:
        """Fill all results."""
        for result in (self.split, self.states, self.buffers, self.counts):
            result.fill_(POISON)

    def reference(self) -> dict[str, Tensor]:
        """Decodes are the requests before the first that prefills or has too long a query."""
        queries, threshold = self.queries.tolist(), 1 + self.shape.drafts
        sorts = [query > threshold or flag for query, flag in zip(queries, self.is_prefilling.tolist(), strict=True)]
        decodes = sorts.index(True) if True in sorts else len(sorts)
        tokens = sum(queries[:decodes])
        self.split[:] = torch.tensor([decodes, len(queries) - decodes, tokens, sum(queries) - tokens])
        for row, length in enumerate(self.lengths.tolist()):
            first = max((length - 1) // self.shape.block_size, 0) if self.shape.aligned else 0
            self.states[:, row] = self.tables[:, row, first : first + 1 + self.shape.drafts]
        self.buffers[:], self.counts[:] = self.states, self.accepted
        return self._results()

    def fast(self) -> dict[str, Tensor]:
        """The shortcut where it is taken, the columns shared by the groups, and the groups' buffers in one launch."""
        if why_not(self.is_prefilling, int(self.queries.max()), 1 + self.shape.drafts):
            self.reference()
        else:
            self.split[:] = torch.tensor([len(self.queries), 0, int(self.queries.sum()), 0])
        for table, states in zip(self.tables, self.states, strict=True):
            states[:] = self._blocks(table)
        self._write_buffers()
        return self._results()

    def next(self) -> None:
        """Advance the contexts as far as their tables reach."""
        longest = (self.shape.blocks - self.shape.drafts) * self.shape.block_size
        self.lengths = (self.lengths + self.advances).clamp(max=longest)
        self.step += 1
        self._draw()

    def _blocks(self, table: Tensor) -> Tensor:
        width = 1 + self.shape.drafts
        if not self.shape.aligned:
            return table[:, :width]
        return torch.gather(table, 1, self.offsets.rows(self.lengths, self.shape.block_size, width))

    def _write_buffers(self) -> None:
        """As a step's first build does for all its groups; copied where no kernel runs."""
        if why_no_kernels(self.tables.device.type):
            self.buffers[:], self.counts[:] = self.states, self.accepted
            return
        parts = zip(self.tables, self.buffers, self.counts, strict=True)
        groups = [Group(None, *part, self.shape.batch, padding=True) for part in parts]
        self.ahead.write(groups, self.lengths, self.accepted, self.shape.block_size if self.shape.aligned else 0)

    def _results(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in ("split", "states", "buffers", "counts")}

    def _draw(self) -> None:
        rows = [self.pattern[(row + self.step) % len(self.pattern)] for row in range(self.shape.batch)]
        rows.sort(key=lambda advance: advance is None)
        queries = [9 if advance is None else (1 + self.shape.drafts) * (advance > 0) for advance in rows]
        self.queries = torch.tensor(queries, dtype=torch.int32)
        self.is_prefilling = torch.tensor([advance is None for advance in rows])
        advances = [9 if advance is None else advance for advance in rows]
        self.advances = torch.tensor(advances, dtype=torch.int32, device=self.device)
        self.accepted = self.advances.clamp(min=1)


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
        case("five groups whose blocks are the first ones", Shape(3, 2, blocks=3, groups=5, aligned=False), (3, 1)),
        case("groups with prefills", Shape(4, 2, groups=2), (3, None), steps=2),
        case("20 steps", Shape(4, 3, blocks=40, groups=2), (1, 4, None, 2, 3), start=0, steps=20),
    ]
