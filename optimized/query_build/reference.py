"""What a block's inputs must be, request by request, from what was accepted."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.query_build.lookup import Contexts, build, choose
from optimized.reference_cycle.drafter import Queries

VOCAB, MASK = 53, 52


@dataclass(frozen=True)
class Shape:
    """B requests, K drafts, a block of S tokens, `hidden` wide, and the longest context."""

    batch: int
    drafts: int
    block: int
    hidden: int = 24
    limit: int = 40


class Block:
    """Requests whose contexts grow by counts[(row + step) mod n]; 0 is a row that accepted nothing, an idle one.

    Rows sit in the slots from the last one down.
    """

    def __init__(self, shape: Shape, counts: tuple[int, ...], start: int, place: Place) -> None:
        self.shape, self.pattern, self.step, self.device = shape, counts, 0, place.device
        self.random, dtype = torch.Generator().manual_seed(2), getattr(torch, place.dtype)
        self.embedding = torch.randn(VOCAB, shape.hidden, generator=self.random).to(place.device, dtype)
        self.slots = torch.arange(shape.batch - 1, -1, -1, device=place.device)
        self.contexts = torch.arange(start, start + shape.batch + 1, device=place.device).clamp(max=shape.limit)
        self.builder = choose(self.embedding, (shape.batch, shape.block, shape.drafts + 1), MASK)
        sizes = ((shape.batch,), (shape.batch, shape.block), (shape.batch, shape.drafts + 1), (shape.batch,))
        bonus, positions, context, own = (torch.zeros(size, dtype=torch.int64, device=place.device) for size in sizes)
        noise = torch.zeros(shape.batch, shape.block, shape.hidden, dtype=dtype, device=place.device)
        self.out = Queries(bonus, positions, context, noise, own)
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The verdict, the contexts by slot and the table of embeddings."""
        return {name: getattr(self, name) for name in ("accepted", "counts", "contexts", "slots", "embedding")}

    def poison(self) -> None:
        """Fill all five buffers."""
        for item in fields(self.out):
            buffer = getattr(self.out, item.name)
            buffer.fill_(float("nan") if buffer.is_floating_point() else -(2**40))

    def reference(self) -> dict[str, Tensor]:
        """Row by row, in numbers."""
        for row, count in enumerate(self.counts.tolist()):
            length, newest = int(self.contexts[self.slots[row]]), int(self.accepted[row, max(count - 1, 0)])
            self.out.bonus[row], self.out.counts[row] = newest, count
            first = min(length + count, self.shape.limit)
            self.out.positions[row] = torch.arange(first, first + self.shape.block)
            self.out.context_positions[row] = torch.arange(length, length + self.shape.drafts + 1)
            tokens = [newest] + [MASK] * (self.shape.block - 1)
            self.out.noise[row] = torch.stack([self.embedding[token] for token in tokens])
        return self._results()

    def fast(self) -> dict[str, Tensor]:
        """All rows at once, in one launch where kernels run."""
        contexts = Contexts(self.contexts, self.slots, self.shape.limit)
        build(self.builder, self.embedding, (self.accepted, self.counts), contexts, self.out)
        return self._results()

    def next(self) -> None:
        """Advance the contexts and accept anew."""
        self.contexts[self.slots] += self.counts
        self.contexts.clamp_(max=self.shape.limit)
        self.step += 1
        self._draw()

    def _results(self) -> dict[str, Tensor]:
        return {item.name: getattr(self.out, item.name).clone() for item in fields(self.out)}

    def _draw(self) -> None:
        batch, columns = self.shape.batch, self.shape.drafts + 1
        accepted = torch.randint(VOCAB, (batch, columns), generator=self.random, dtype=torch.int32)
        counts = [self.pattern[(row + self.step) % len(self.pattern)] for row in range(batch)]
        self.accepted = accepted.to(self.device)
        self.counts = torch.tensor(counts, dtype=torch.int32, device=self.device)


def cases() -> list[Case]:
    """Both kinds of block, odd shapes, idle rows, all and none accepted, the limit reached, and 20 steps."""

    def case(
        name: str, shape: Shape, counts: tuple[int, ...], start: int = 0, steps: int = 1, dtype: str | None = None
    ) -> Case:
        return Case(name, lambda place: Block(shape, counts, start, place), steps, dtype)

    return [
        case("all accepted", Shape(4, 7, 8), (8,), 3),
        case("none accepted", Shape(4, 7, 8), (1,), 3),
        case("idle rows", Shape(5, 3, 4), (0, 2, 0)),
        case("every row idle", Shape(3, 3, 4), (0,)),
        case("block of K", Shape(3, 5, 5), (6, 1)),
        case("block of one", Shape(1, 1, 1, hidden=1), (2, 1)),
        case("odd shapes", Shape(7, 3, 4, hidden=37), (1, 4, 2)),
        case("half precision", Shape(2, 3, 4, hidden=5), (1, 4), dtype="float16"),
        case("capacity reached", Shape(3, 3, 4, limit=10), (4,), 8, 2),
        case("20 steps", Shape(3, 3, 4, limit=60), (1, 4, 2, 3), 2, 20),
    ]
