"""Intervals on threads: which ranges hold a moment, and the union of intervals of one span in one cycle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spantrace.naming import Ints


@dataclass(frozen=True)
class Ranges:
    """n ranges with their span ids and threads, in order of start; those of one span and thread do not overlap."""

    name: Ints
    thread: Ints
    start: Ints
    end: Ints

    def enclosing(self, thread: Ints, time: Ints) -> Iterator[tuple[int, Ints]]:
        """Each span that has ranges, with the places of the moments [m] that one of them on their thread holds."""
        for span in np.unique(self.name).tolist():
            held = [self._held(span, one, thread, time) for one in np.unique(self.thread).tolist()]
            yield span, np.concatenate(held)

    def _held(self, span: int, on: int, thread: Ints, time: Ints) -> Ints:
        here = (self.name == span) & (self.thread == on)
        start, end = self.start[here], self.end[here]
        asked = np.flatnonzero(thread == on)
        if not len(start):
            return asked[:0]
        last = np.searchsorted(start, time[asked], side="right") - 1
        held: Ints = asked[(last >= 0) & (time[asked] < end[np.maximum(last, 0)])]
        return held


def united(name: Ints, cycle: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The same intervals with those that overlap or touch merged, each span of each cycle on its own."""
    if not len(start):
        return name, cycle, start, end
    key = cycle * (int(name.max()) + 1) + name
    order = np.lexsort((start, key))
    name, cycle, start, end, key = name[order], cycle[order], start[order], end[order], key[order]
    group = np.cumsum(np.append(False, key[1:] != key[:-1]))
    heads = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    since = start[heads][group]
    # Each group is moved behind all before it, so that one running maximum serves them all and never crosses over.
    moved = group * (int((end - since).max()) + 2)
    opened, closed = start - since + moved, np.maximum.accumulate(end - since + moved)
    begins = np.append(True, opened[1:] > closed[:-1])
    last = np.append(np.flatnonzero(begins)[1:] - 1, len(start) - 1)
    return name[begins], cycle[begins], start[begins], (closed - moved + since)[last]
