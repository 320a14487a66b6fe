"""What must be kept of a cycle's verified rows, row by row, and the situations it is judged in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.masked_scatter.storing import Memory, store


@dataclass(frozen=True)
class Shape:
    """B requests of K + 1 rows; `accepted` of them take turns in how many stand, 0 is idle and writes to the dummy."""

    batch: int = 3
    verified: int = 4
    hidden: int = 24
    longest: int = 40
    accepted: tuple[int, ...] = (4, 1)
    start: int = 5
    strange: bool = False


class Rows:
    """Slots that fill up, in an order that is not the batch's; `strange` rows hold infinities and no numbers."""

    def __init__(self, shape: Shape, place: Place) -> None:
        self.shape, self.place, self.step = shape, place, 0
        self.random, self.dtype = torch.Generator().manual_seed(13), getattr(torch, place.dtype)
        slots = (shape.batch + 1, shape.longest)
        self.kept = Memory(self._draw(*slots, shape.hidden), torch.zeros(slots, dtype=torch.int64, device=place.device))
        self.lengths = (shape.start + torch.arange(shape.batch)).clamp(max=shape.longest).to(place.device)
        self._begin()

    def inputs(self) -> dict[str, Tensor]:
        """The rows, where they stand, how many of them, and whose they are."""
        return {name: getattr(self, name) for name in ("states", "positions", "counts", "slots")}

    def poison(self) -> None:
        """Fill the cells that the step writes, and no others: they are kept."""
        cells = self.slots.unsqueeze(1), self.positions.clamp(max=self.shape.longest - 1)
        self.kept.states[cells], self.kept.positions[cells] = float("nan"), -7

    def reference(self) -> dict[str, Tensor]:
        """Row by row."""
        for row, (slot, count) in enumerate(zip(self.slots.tolist(), self.counts.tolist(), strict=True)):
            for step, position in enumerate(self.positions[row].tolist()):
                column, mask = min(position, self.shape.longest - 1), float(step < count)
                self.kept.states[slot, column] = self.states[row, step] * mask
                self.kept.positions[slot, column] = position
        return self._results()

    def fast(self) -> dict[str, Tensor]:
        """In one launch."""
        store(self.states, self.positions, self.counts, self.slots, self.kept)
        return self._results()

    def next(self) -> None:
        """Let the contexts grow, and verify anew."""
        self.lengths = (self.lengths + self.counts).clamp(max=self.shape.longest)
        self.step += 1
        self._begin()

    def _results(self) -> dict[str, Tensor]:
        """All slots but the dummy, whose rows overwrite each other, and of the last column those that one row wrote."""
        states, positions = self.kept.states.clone()[:-1], self.kept.positions.clone()[:-1]
        for row, slot in enumerate(self.slots.tolist()):
            if slot < self.shape.batch and (self.positions[row] >= self.shape.longest - 1).sum() > 1:
                states[slot, -1], positions[slot, -1] = 0.0, 0
        return {"states": states, "positions": positions}

    def _begin(self) -> None:
        shape, device = self.shape, self.place.device
        counts = [shape.accepted[(row + self.step) % len(shape.accepted)] for row in range(shape.batch)]
        self.counts = torch.tensor(counts, device=device)
        own = shape.batch - 1 - torch.arange(shape.batch, device=device)
        self.slots = own.masked_fill(self.counts == 0, shape.batch)
        self.positions = self.lengths.unsqueeze(1) + torch.arange(shape.verified, device=device)
        self.states = self._draw(shape.batch, shape.verified, shape.hidden)
        if shape.strange:
            odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0], device=device)
            self.states[..., :5] = odd.to(self.dtype)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random).to(self.place.device, self.dtype)


def cases() -> list[Case]:
    """All and none accepted, idle rows, infinities, rows wider than a program, the longest context, and 20 steps."""
    small = Shape()

    def case(name: str, shape: Shape, steps: int = 1, dtype: str | None = None) -> Case:
        return Case(name, lambda place: Rows(shape, place), steps, dtype)

    return [
        case("all accepted", replace(small, accepted=(4,)), 3),
        case("none accepted", replace(small, accepted=(1,)), 3),
        case("idle rows", replace(small, accepted=(0, 3, 0)), 2),
        case("every row idle", replace(small, accepted=(0,))),
        case("infinities", replace(small, accepted=(2,), strange=True)),
        case("odd shapes", Shape(5, 3, 37, 11, (1, 3, 2), 0), 2),
        case("rows wider than a program", Shape(1, 2, 1100, 6, (1,), 0), 2),
        case("half precision", small, dtype="float16"),
        case("capacity reached", replace(small, start=33, accepted=(4,)), 3),
        case("20 steps", Shape(2, 3, 8, 70, (1, 3, 0, 2)), 20),
    ]
