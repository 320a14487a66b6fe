"""A prefix cache in a few lines, which drops the last block of a hit as vLLM does for EAGLE."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

FULL, STATE = 0, -1
"""What a group of layers reads of a prefix: all of it, or the state at its end; else so many blocks at its end."""


@dataclass
class Group:
    """Layers that are cached together; where it `drops`, a hit must have one block more, which is computed anew."""

    reach: int
    drops: bool

    def needs(self, blocks: int, more: int = 0) -> range:
        """The blocks that must be cached for a prefix of so many, and `more` before them."""
        if self.reach == FULL:
            return range(blocks)
        return range(max(blocks - (1 if self.reach == STATE else self.reach + more), 0), blocks)


@dataclass
class Cache:
    """Blocks of `size` tokens of each row's conversation, at most `capacity` of them, those that were used last.

    A prefill is computed in chunks of so many blocks. States are cached where a chunk ends: at the last whole block at
    the latest or, where it `backs_off`, one block before it.
    """

    groups: tuple[Group, ...]
    size: int
    capacity: int
    chunk: int = 3
    backs_off: bool = True
    _blocks: OrderedDict[tuple[int, int, int], None] = field(default_factory=OrderedDict)

    def find(self, row: int, length: int) -> int:
        """How many blocks of a prompt of `length` tokens are not computed; its last token always is."""
        most, before = max(length - 1, 0) // self.size, -1
        found = most
        while found != before:
            before = found
            for index, group in enumerate(self.groups):
                longest = self._longest(row, index, min(found + group.drops, most))
                found = max(longest - group.drops, 0)
        return found

    def last_state(self, length: int) -> int:
        """After how many blocks of a prompt the last state is cached."""
        return max(length // self.size - self.backs_off, 0)

    def has(self, row: int, index: int, block: int) -> bool:
        """Whether the block is cached for that group."""
        return (row, index, block) in self._blocks

    def store(self, row: int, length: int, found: int, last_state: int) -> None:
        """Use what was found of a prompt, and cache what is computed of it."""
        for index, group in enumerate(self.groups):
            ends = {last_state, *range(0, length // self.size, self.chunk)}
            fresh = [block for block in range(found, length // self.size) if group.reach != STATE or block + 1 in ends]
            for block in (*group.needs(found), *fresh):
                self._blocks[row, index, block] = None
                self._blocks.move_to_end((row, index, block))
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)

    def _longest(self, row: int, index: int, most: int) -> int:
        group = self.groups[index]
        for blocks in range(most, 0, -1):
            if all(self.has(row, index, block) for block in group.needs(blocks, group.drops)):
                return blocks
        return 0
