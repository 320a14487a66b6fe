"""What a prefix cache may leave out of a prompt: everything that it holds, whole block by whole block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.keep_last_block.kept import Held, held
from optimized.keep_last_block.lookup import FULL, STATE, Cache, Group

POISON = -(2**30)


@dataclass(frozen=True)
class Shape:
    """B conversations, K drafts a step, blocks of so many tokens, and what each group of layers reads."""

    batch: int
    drafts: int
    size: int = 4
    reaches: tuple[int, ...] = (FULL,)
    capacity: int = 10_000


class Resent:
    """Conversations that are resent at each step; that of row r has grown by advances[(r + step) mod n] tokens."""

    def __init__(self, shape: Shape, advances: tuple[int, ...], start: int, place: Place) -> None:
        self.shape, self.pattern, self.step = shape, advances, 0
        groups = tuple(Group(reach, drops=reach != STATE) for reach in shape.reaches)
        self.cache = Cache(groups, shape.size, shape.capacity)
        self.lengths = torch.full((shape.batch,), start, dtype=torch.int64, device=place.device)
        self.cached = torch.zeros(shape.batch, dtype=torch.int64, device=place.device)
        for row in range(shape.batch):
            self.cache.store(row, start, 0, start // shape.size)

    def inputs(self) -> dict[str, Tensor]:
        """The prompts' lengths, int64 [B]."""
        return {"lengths": self.lengths}

    def poison(self) -> None:
        """Fill the result."""
        self.cached.fill_(POISON)

    def reference(self) -> dict[str, Tensor]:
        """The most blocks before a prompt's last token of which all groups have all that they need."""
        for row, length in enumerate(self.lengths.tolist()):
            found = max(length - 1, 0) // self.shape.size
            while not self._have_all(row, found):
                found -= 1
            self.cached[row] = found * self.shape.size
            self.cache.store(row, length, found, length // self.shape.size)
        return {"cached": self.cached.clone()}

    def fast(self) -> dict[str, Tensor]:
        """The lookup that drops blocks, kept from it."""
        changes = Held()
        for group in self.cache.groups:
            changes.set(group, "drops", False)
        with held(self.cache, backs_off=False):
            self._look_up()
        changes.put_back()
        return {"cached": self.cached.clone()}

    def next(self) -> None:
        """Let the conversations grow."""
        rows = range(self.shape.batch)
        grown = [self.pattern[(row + self.step) % len(self.pattern)] for row in rows]
        self.lengths = self.lengths + torch.tensor(grown, device=self.lengths.device)
        self.step += 1

    def _look_up(self) -> None:
        for row, length in enumerate(self.lengths.tolist()):
            found = self.cache.find(row, length)
            self.cached[row] = found * self.shape.size
            self.cache.store(row, length, found, self.cache.last_state(length))

    def _have_all(self, row: int, blocks: int) -> bool:
        reaches = enumerate(self.shape.reaches)
        firsts = {FULL: 0, STATE: blocks - 1}
        wanted = [(index, range(max(firsts.get(reach, blocks - reach), 0), blocks)) for index, reach in reaches]
        return all(self.cache.has(row, index, block) for index, span in wanted for block in span)


def cases(sent: type[Resent] = Resent) -> list[Case]:
    """All and none accepted, idle rows, windows and states, odd shapes, a cache that is too small, and 20 steps."""

    def case(name: str, shape: Shape, advances: tuple[int, ...], start: int = 23, steps: int = 3) -> Case:
        return Case(name, lambda place: sent(shape, advances, start, place), steps)

    everything = (FULL, 2, STATE)
    return [
        case("all accepted", Shape(4, 3), (4,)),
        case("none accepted", Shape(4, 3), (1,)),
        case("idle rows", Shape(5, 3), (0, 2, 0)),
        case("every row idle, no context", Shape(3, 3), (0,), start=0),
        case("a prompt that ends with a block", Shape(3, 3), (4,), start=24),
        case("a window", Shape(3, 3, reaches=(FULL, 2)), (4, 1)),
        case("states", Shape(3, 3, reaches=(FULL, STATE)), (4, 1), steps=6),
        case("odd shapes", Shape(7, 5, size=3, reaches=everything), (1, 6, 2)),
        case("no drafts", Shape(3, 0), (1,)),
        case("capacity reached", Shape(3, 3, reaches=(FULL, 2), capacity=50), (4,), steps=6),
        case("20 steps", Shape(4, 3, reaches=everything), (1, 4, 9, 2, 3), start=1, steps=20),
    ]
