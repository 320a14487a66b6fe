"""What a verdict must be, number by number: the first best word of each row, and the drafts that equal it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.accept.accepting import Buffers, accept
from optimized.cases import Case, Place

STRANGE = (math.nan, math.inf, -math.inf, 0.0, -0.0)


@dataclass(frozen=True)
class Shape:
    """B requests, K drafts, rows that the target verified (2K or K + 1), words, and words of a tile."""

    batch: int
    drafts: int
    rows: int
    vocab: int
    tile: int


def best(row: list[float]) -> int:
    """The first that is not a number, else the first of the greatest."""
    for index, value in enumerate(row):
        if math.isnan(value):
            return index
    return row.index(max(row))


class Decision:
    """Logits that are all different, or that `spoil` changed; of request b and step s, accepted[(b + s) mod n] drafts
    stand. An idle row, where that is None, has no drafts: they are -1."""

    def __init__(
        self, shape: Shape, accepted: tuple[int | None, ...], spoil: Callable[[Tensor], None] | None, place: Place
    ) -> None:
        self.shape, self.pattern, self.spoil, self.step = shape, accepted, spoil, 0
        self.device, self.dtype = place.device, getattr(torch, place.dtype)
        self.random = torch.Generator().manual_seed(6)
        self.buffers = Buffers.create(shape.batch, shape.drafts + 1, shape.vocab, place.device, shape.tile)
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The logits and the drafts."""
        return {"logits": self.logits, "drafts": self.drafts}

    def poison(self) -> None:
        """Fill the verdict, and the tiles' best with the first word, which is readable and wrong."""
        verdict = self.buffers.verdict
        for buffer in (verdict.accepted, verdict.counts, verdict.newest):
            buffer.fill_(-7)
        self.buffers.best.zero_()

    def reference(self) -> dict[str, Tensor]:
        """Row by row, in numbers."""
        said = [[best(row) for row in rows[: self.shape.drafts + 1]] for rows in self.logits.tolist()]
        counts = [self._standing(row, drafts) + 1 for row, drafts in zip(said, self.drafts.tolist(), strict=True)]
        newest = [row[count - 1] for row, count in zip(said, counts, strict=True)]
        verdict = {
            "accepted": torch.tensor(said, dtype=torch.int32),
            "counts": torch.tensor(counts, dtype=torch.int32),
            "newest": torch.tensor(newest),
        }
        return {name: part.to(self.device) for name, part in verdict.items()}

    def fast(self) -> dict[str, Tensor]:
        """By the kernels, which a CPU interprets."""
        verdict = accept(self.logits, self.drafts, self.buffers)
        names = ("accepted", "counts", "newest")
        return {name: getattr(verdict, name).clone() for name in names}

    def next(self) -> None:
        """Other logits and drafts."""
        self.step += 1
        self._draw()

    @staticmethod
    def _standing(said: list[int], drafts: list[int]) -> int:
        wrong = [index for index, draft in enumerate(drafts) if draft != said[index]]
        return wrong[0] if wrong else len(drafts)

    def _draw(self) -> None:
        shape = self.shape
        logits = torch.randn(shape.batch, shape.rows, shape.vocab, generator=self.random).to(self.dtype)
        if self.spoil:
            self.spoil(logits)
        drafts = torch.tensor([[best(row) for row in rows[: shape.drafts]] for rows in logits.tolist()])
        for row in range(shape.batch):
            accepted = self.pattern[(row + self.step) % len(self.pattern)]
            if accepted is None:
                drafts[row] = -1
            elif accepted < shape.drafts:
                drafts[row, accepted] = (drafts[row, accepted] + 1) % shape.vocab
        self.logits, self.drafts = logits.to(self.device), drafts.to(self.device)


def equals(logits: Tensor) -> None:
    """Every other word shares its row's greatest value, within a tile and across tiles."""
    logits[:, :, 3::2] = 9.0


def none_larger(logits: Tensor) -> None:
    """Rows of one value, of zeros of either sign, and of nothing but minus infinity."""
    logits[:, 0] = 1.0
    logits[:, 1, ::2], logits[:, 1, 1::2] = -0.0, 0.0
    logits[:, -1] = -math.inf


def not_numbers(logits: Tensor) -> None:
    """NaN behind infinity, several of them, in the last word, in every word; infinities twice."""
    rows, words = logits.shape[1:]
    for row in range(rows):
        logits[:, row, (5 * row + 1) % words] = STRANGE[row % len(STRANGE)]
        logits[:, row, (7 * row + 3) % words] = math.inf
    logits[0, 0, -1] = math.nan
    logits[-1, 1] = math.nan


def cases() -> list[Case]:
    """All and none accepted, idle rows, equal words, strange numbers, odd shapes, full vocabularies, and 20 steps."""

    def case(
        name: str,
        shape: Shape,
        accepted: tuple[int | None, ...],
        spoil: Callable[[Tensor], None] | None = None,
        steps: int = 1,
        dtype: str | None = None,
    ) -> Case:
        return Case(name, lambda place: Decision(shape, accepted, spoil, place), steps, dtype)

    small = Shape(3, 3, 6, 45, 16)
    return [
        case("all accepted", small, (3,), steps=2),
        case("none accepted", small, (0,), steps=2),
        case("idle rows", small, (None, 2)),
        case("every row idle", small, (None,)),
        case("equal words", small, (1, 3), equals),
        case("none larger than another", small, (3, 0, 1), none_larger),
        case("not numbers", small, (2, 3, 0), not_numbers),
        case("not numbers, in half precision", small, (2, 3, 0), not_numbers, dtype="float16"),
        case("not numbers, in double precision", small, (2, 3, 0), not_numbers, dtype="float64"),
        case("one draft", Shape(2, 1, 2, 31, 32), (0, 1)),
        case("odd shapes", Shape(5, 6, 7, 131, 32), (2, 6, 4), equals),
        case("capacity reached: no word is left over in a tile", Shape(2, 3, 4, 64, 32), (3, 1)),
        case("20 steps", Shape(2, 3, 4, 45, 16), (1, 3, 0, 2), steps=20),
    ]
