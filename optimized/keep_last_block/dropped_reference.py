"""What a prefix cache that drops leaves out of a prompt: one block less than it holds of all but the states."""

from __future__ import annotations

from torch import Tensor

from optimized.cases import Case, Place
from optimized.keep_last_block.kept import Held, held
from optimized.keep_last_block.lookup import FULL, STATE, Group
from optimized.keep_last_block.reference import Resent, Shape


class Dropping(Resent):
    """The same conversations in a cache that keeps every block, until it is made to drop the last one."""

    def __init__(self, shape: Shape, advances: tuple[int, ...], start: int, place: Place) -> None:
        super().__init__(shape, advances, start, place)
        for group in self.cache.groups:
            group.drops = False
        self.cache.backs_off = False

    def reference(self) -> dict[str, Tensor]:
        """The most blocks of which all groups have all that they need, those without states one block more."""
        for row, length in enumerate(self.lengths.tolist()):
            found = max(max(length - 1, 0) // self.shape.size - 1, 0)
            while found and not all(self._has_one_more(row, *one, found) for one in enumerate(self.cache.groups)):
                found -= 1
            self.cached[row] = found * self.shape.size
            self.cache.store(row, length, found, max(length // self.shape.size - 1, 0))
        return {"cached": self.cached.clone()}

    def fast(self) -> dict[str, Tensor]:
        """The lookup that keeps every block, made to drop the last."""
        changes = Held()
        for group in self.cache.groups:
            changes.set(group, "drops", group.reach != STATE)
        with held(self.cache, backs_off=True):
            for row, length in enumerate(self.lengths.tolist()):
                found = self.cache.find(row, length)
                self.cached[row] = found * self.shape.size
                self.cache.store(row, length, found, self.cache.last_state(length))
        changes.put_back()
        return {"cached": self.cached.clone()}

    def _has_one_more(self, row: int, index: int, group: Group, blocks: int) -> bool:
        first = {FULL: 0, STATE: blocks - 1}.get(group.reach, blocks - group.reach)
        end = blocks if group.reach == STATE else blocks + 1
        return all(self.cache.has(row, index, block) for block in range(max(first, 0), end))


def cases() -> list[Case]:
    """All and none accepted, idle rows, windows and states, odd shapes, a cache that is too small, and 20 steps."""

    def case(name: str, shape: Shape, advances: tuple[int, ...], start: int = 23, steps: int = 3) -> Case:
        return Case(name, lambda place: Dropping(shape, advances, start, place), steps)

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
        case("capacity reached", Shape(3, 3, reaches=(FULL, 2), capacity=50), (4,), steps=6),
        case("20 steps", Shape(4, 3, reaches=everything), (1, 4, 9, 2, 3), start=1, steps=20),
    ]
