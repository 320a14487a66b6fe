"""What the context's buffers must hold, in the pinned order written out, and the situations it is judged in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.context_norm_rope import caching_reference
from optimized.context_norm_rope.placing import STOCK_ROUNDING, place
from optimized.head_order import inverse_rms_in_order, rms_norm_in_order
from optimized.reference_cycle import attention
from optimized.reference_cycle.geometry import Rope
from optimized.reference_cycle.rope import rope_table, rotate_halves

PLAIN = Rope(theta=1e4)


@dataclass(frozen=True)
class Shape:
    """B requests of K + 1 verified rows, L layers; `accepted` of them take turns in how many stand, 0 is idle.

    An idle row writes to the dummy slot, the last. Without `cells` all columns of all rows are made.
    """

    batch: int = 3
    verified: int = 4
    layers: int = 2
    heads: int = 2
    width: int = 16
    columns: int = 40
    accepted: tuple[int, ...] = (4, 1)
    start: int = 5
    cells: bool = True
    rounding: int = STOCK_ROUNDING
    epsilon: float = 1e-6
    rope: Rope = PLAIN


class Context:
    """Slots that fill up, in an order that is not the batch's; the rows that did not stand are zeros."""

    def __init__(self, shape: Shape, place: Place) -> None:
        self.shape, self.place, self.step = shape, place, 0
        self.random, self.dtype = torch.Generator().manual_seed(12), getattr(torch, place.dtype)
        self.table = rope_table(shape.rope, shape.width, shape.columns + shape.verified, place.device)
        self.norms = 1 + 0.1 * self._draw(shape.layers, shape.width)
        size = (shape.layers, shape.batch + 1, shape.columns, shape.heads, shape.width)
        self.into = torch.zeros(size, device=place.device, dtype=self.dtype), self._draw(*size)
        self.lengths = (shape.start + torch.arange(shape.batch)).clamp(max=shape.columns).to(place.device)
        self._begin()

    def inputs(self) -> dict[str, Tensor]:
        """The projections, where they go, and the weights."""
        whose = {"rows": self.cells[0], "columns": self.cells[1], "positions": self.positions}
        return {"raw": self.raw, "norms": self.norms, "table": self.table, **whose}

    def poison(self) -> None:
        """Fill the cells that the step writes, and no others: they are kept."""
        for buffer in self.into:
            if self.shape.cells:
                buffer[:, self.cells[0], self.cells[1]] = float("nan")
            else:
                buffer[:, :-1] = float("nan")

    def reference(self) -> dict[str, Tensor]:
        """The chain, on a GPU as it is where it rounds once; layer by layer in the pinned order on a CPU."""
        given = self.raw, self.positions, self.norms, self.table, self._buffers(), self.shape.epsilon
        if self.place.device == "cuda" and self.shape.rounding == STOCK_ROUNDING:
            attention.place_context(*given, self.cells if self.shape.cells else None)
            return self._results()
        keys, values = self.raw.unbind(-3)
        for layer, weight in enumerate(self.norms):
            normed = self._normed(keys[..., layer, :, :], weight)
            made = rotate_halves(normed, self.positions, self.table), values[..., layer, :, :]
            for buffer, part in zip(self._buffers(), made, strict=True):
                if self.shape.cells:
                    buffer[layer][self.cells] = part
                else:
                    buffer[layer] = part
        return self._results()

    def fast(self) -> dict[str, Tensor]:
        """In one launch."""
        cells = self.cells if self.shape.cells else None
        given = self.raw, self.positions, self.norms, self.table, self._buffers(), self.shape.epsilon
        place(*given, cells, self.shape.rounding)
        return self._results()

    def next(self) -> None:
        """Let the contexts grow, and verify anew."""
        self.lengths = (self.lengths + self._accepted()).clamp(max=self.shape.columns)
        self.step += 1
        self._begin()

    def _normed(self, keys: Tensor, weight: Tensor) -> Tensor:
        if self.shape.rounding == STOCK_ROUNDING:
            return rms_norm_in_order(keys, weight, self.shape.epsilon)
        wide = keys.float()
        return (wide * inverse_rms_in_order(wide, self.shape.epsilon)).to(keys.dtype) * weight

    def _buffers(self) -> tuple[Tensor, Tensor]:
        keys, values = self.into
        return (keys, values) if self.shape.cells else (keys[:, :-1], values[:, :-1])

    def _results(self) -> dict[str, Tensor]:
        """All slots but the dummy, whose rows overwrite each other, and of the last column those that one row wrote."""
        held = [buffer.clone()[:, :-1] for buffer in self.into]
        for row, slot in enumerate(self.cells[0][:, 0].tolist()):
            if (
                self.shape.cells
                and slot < self.shape.batch
                and (self.cells[1][row] == self.shape.columns - 1).sum() > 1
            ):
                for buffer in held:
                    buffer[:, slot, -1] = 0.0
        return {"keys": held[0], "values": held[1]}

    def _accepted(self) -> Tensor:
        pattern, rows = self.shape.accepted, range(self.shape.batch)
        return torch.tensor([pattern[(row + self.step) % len(pattern)] for row in rows], device=self.place.device)

    def _begin(self) -> None:
        shape, accepted, device = self.shape, self._accepted(), self.place.device
        slots = (shape.batch - 1 - torch.arange(shape.batch, device=device)).masked_fill(accepted == 0, shape.batch)
        steps = torch.arange(shape.verified if shape.cells else shape.columns, device=device)
        first = self.lengths if shape.cells else torch.zeros_like(self.lengths)
        self.positions = first.unsqueeze(1) + steps
        self.cells = slots.unsqueeze(1).expand_as(self.positions), self.positions.clamp(max=shape.columns - 1)
        stands = (steps < accepted.unsqueeze(1)) | (not shape.cells)
        raw = self._draw(*self.positions.shape, shape.layers, 2, shape.heads, shape.width)
        self.raw = raw * stands[..., None, None, None, None].to(raw.dtype)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random).to(self.place.device, self.dtype)


def cases() -> list[Case]:
    """All layers and one, cells and whole rows, both roundings, every width, YaRN, idle rows, 20 steps, and pages."""
    small = Shape()

    def case(name: str, shape: Shape, steps: int = 1, dtype: str | None = None) -> Case:
        return Case(name, lambda place: Context(shape, place), steps, dtype)

    return [
        case("all accepted", replace(small, accepted=(4,)), 3),
        case("none accepted", replace(small, accepted=(1,)), 3),
        case("idle rows", replace(small, accepted=(0, 3, 0)), 2),
        case("every row idle", replace(small, accepted=(0,))),
        case("odd shapes", Shape(5, 3, 3, 1, 8, columns=11, start=0)),
        case("one layer, whole rows", replace(small, layers=1, cells=False, columns=7)),
        case("heads of 32", Shape(1, 2, 1, 3, 32), 2),
        case("heads of 64", Shape(1, 8, 5, 1, 64)),
        case("heads of 128", Shape(1, 8, 5, 2, 128)),
        case("heads of 256", Shape(2, 2, 2, 1, 256)),
        case("two roundings", replace(small, width=64, rounding=2), 2),
        case("two roundings, whole rows", replace(small, layers=1, cells=False, columns=7, rounding=2)),
        case("a table of YaRN's", replace(small, rope=Rope(1e4, factor=32.0, original_context=16, truncate=False))),
        case("another epsilon", replace(small, epsilon=1e-1)),
        case("half precision", replace(small, width=128), dtype="float16"),
        case("capacity reached", replace(small, start=33, accepted=(4,)), 3),
        case("20 steps", replace(small, columns=90), 20),
        *caching_reference.cases(),
    ]
