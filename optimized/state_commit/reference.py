"""What each slot must hold after a commit: the state of one row, found by numbers, and the situations of a batch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.reference_cycle.geometry import StateShape
from optimized.reference_cycle.state_layer import StateLayer, States
from optimized.reference_cycle.weights import Weights
from optimized.state_commit.promotion import Promotion, why_not

HIDDEN = 24
SMALL = StateShape(heads=2, head_dim=4, size=8, width=4)


class Commit:
    """A batch whose first `busy` rows are in slots from the last one down, and count counts[(row + step) mod n] rows.

    The states are those that the layers make of random rows, in the layout that they make them in.
    """

    def __init__(
        self, shape: StateShape, layers: int, sizes: tuple[int, int, int], counts: tuple[int, ...], place: Place
    ) -> None:
        self.batch, busy, self.rows = sizes
        self.pattern, self.step, self.device = counts, 0, place.device
        self.random, self.dtype = torch.Generator().manual_seed(4), getattr(torch, place.dtype)
        weights = Weights(4, place.device, self.dtype)
        self.layers = [
            StateLayer.create(shape, HIDDEN, self.batch + 1, weights.of(str(index))) for index in range(layers)
        ]
        for layer in self.layers:
            for kept in (layer.convolution_state, layer.ssm_state):
                kept.copy_(torch.randn(kept.shape, generator=self.random))
        slots = [self.batch - 1 - row if row < busy else self.batch for row in range(self.batch)]
        self.slots = torch.tensor(slots, device=place.device)
        self.promotion = Promotion(self.layers)
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The states after every row, and which of them are to be kept where."""
        parts = (("window", "convolution"), ("state", "ssm"))
        made = {f"{name} {i}": getattr(after, part) for i, after in enumerate(self.states) for name, part in parts}
        return {**made, "slots": self.slots, "counts": self.counts}

    def poison(self) -> None:
        """Every slot that is about to be overwritten."""
        slots = self.slots[self.slots < self.batch]
        for layer in self.layers:
            for kept in (layer.convolution_state, layer.ssm_state):
                kept[slots] = torch.nan

    def reference(self) -> dict[str, Tensor]:
        """Slot by slot."""
        for row, slot in enumerate(self.slots.tolist()):
            for layer, after in zip(self.layers, self.states, strict=True):
                if slot < self.batch:
                    layer.convolution_state[slot] = after.convolution[row][int(self.counts[row]) - 1]
                    layer.ssm_state[slot] = after.ssm[row][int(self.counts[row]) - 1]
        return self._kept()

    def fast(self) -> dict[str, Tensor]:
        """All layers in one launch."""
        if reason := why_not(self.layers, self.states, self.slots, self.counts):
            raise ValueError(reason)
        self.promotion.promote(self.states, self.slots, self.counts)
        return self._kept()

    def next(self) -> None:
        """Other rows, of which other numbers are accepted."""
        self.step += 1
        self._draw()

    def _kept(self) -> dict[str, Tensor]:
        windows = {f"window {i}": layer.convolution_state.clone() for i, layer in enumerate(self.layers)}
        states = {f"state {i}": layer.ssm_state.clone() for i, layer in enumerate(self.layers)}
        broken = self.promotion.broken.clone().to(self.device)
        return {**windows, **states, "broken": broken}

    def _draw(self) -> None:
        drawn = torch.randn(self.batch, self.rows, HIDDEN, generator=self.random).to(self.device, self.dtype)
        self.states: list[States] = [layer(drawn, self.slots)[1] for layer in self.layers]
        counts = [self.pattern[(row + self.step) % len(self.pattern)] for row in range(self.batch)]
        self.counts = torch.tensor(counts, device=self.device)


def cases() -> list[Case]:
    """All and none accepted, idle rows, which may hold any count, odd shapes, a full batch, and 20 steps."""

    def case(
        name: str,
        sizes: tuple[int, int, int],
        counts: tuple[int, ...],
        steps: int = 1,
        shape: StateShape = SMALL,
        layers: int = 2,
        dtype: str | None = None,
    ) -> Case:
        return Case(name, lambda place: Commit(shape, layers, sizes, counts, place), steps, dtype)

    return [
        case("all accepted", (3, 3, 4), (4,)),
        case("none accepted", (3, 3, 4), (1,)),
        case("idle rows", (4, 2, 4), (2, 3, 0, 1)),
        case("every row idle", (2, 0, 3), (1, 0)),
        case("odd shapes", (3, 2, 5), (2, 5, 1), 1, StateShape(3, 5, 7, 3), 3),
        case("more than a program's numbers", (1, 1, 2), (2,), 1, replace(SMALL, heads=3, head_dim=16, size=24), 1),
        case("capacity reached", (5, 5, 2), (2,)),
        case("half precision", (2, 2, 3), (1, 3), dtype="float16"),
        case("20 steps", (2, 2, 4), (1, 4, 2, 3), 20, StateShape(1, 4, 4, 4), 2),
    ]
