"""A bounded, lock-free store of one recording's rows in one process: too full, it drops the oldest and counts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import repeat, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW = 3
"""Integers of one row: site and lane, start and end in CLOCK_MONOTONIC nanoseconds."""


class Ring:
    """Rows of `width` values, put in by any thread with one C call each and taken out by one draining thread.

    Rows lie flat, so that none is a tuple that Python's garbage collector would come to look at every few cycles.
    The bound is kept when rows are taken out, so that putting one in need not number it: who stops draining for good
    must stop what puts them in, as a session does whose client has gone.
    """

    def __init__(self, capacity: int = 1 << 16, width: int = ROW) -> None:
        self._values: deque[Any] = deque()
        self._capacity, self._width = capacity, width
        self._lost = 0
        self.put: Callable[[tuple[Any, ...]], None] = self._values.extend

    def drain(self) -> list[Any]:
        """Take out the values of the newest rows up to the capacity, oldest first; the rows before them are lost."""
        there = len(self._values)
        excess = max(0, there - self._capacity * self._width)
        self._lost += excess // self._width
        return [*starmap(self._values.popleft, repeat((), there))][excess:]

    def lost(self) -> int:
        """Count the rows dropped so far."""
        return self._lost


def as_array(values: list[int], width: int = ROW) -> NDArray[np.int64]:
    """The values of rows of `width` integers as an int64 array of shape [rows, width]."""
    return np.fromiter(values, dtype=np.int64, count=len(values)).reshape(-1, width)
