"""What a prefix cache that drops leaves out of a prompt: one block less than it holds of all but the states."""

from __future__ import annotations

from torch import Tensor

from optimized.cases import Case, Place
from optimized.keep_last_block import reference
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
            self._look_up()
        changes.put_back()
        return {"cached": self.cached.clone()}

    def _has_one_more(self, row: int, index: int, group: Group, blocks: int) -> bool:
        first = {FULL: 0, STATE: blocks - 1}.get(group.reach, blocks - group.reach)
        end = blocks if group.reach == STATE else blocks + 1
        return all(self.cache.has(row, index, block) for block in range(max(first, 0), end))


def cases() -> list[Case]:
    """Those of the fix."""
    return reference.cases(Dropping)
