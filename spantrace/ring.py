"""A bounded, lock-free store of one recording's rows in one process: full, it drops the oldest and counts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW = 4
"""Integers of one row: sequence number, site and lane, start and end in CLOCK_MONOTONIC nanoseconds."""


class Ring:
    """Rows appended by any thread with one C call each, taken out by one draining thread."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._rows: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        self._issued = count()
        self._received = 0
        self.append: Callable[[tuple[Any, ...]], None] = self._rows.append
        self.next_number: Callable[[], int] = self._issued.__next__

    def drain(self) -> list[tuple[Any, ...]]:
        """Take out every row that is there now, oldest first."""
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        self._received += len(rows)
        return rows

    def lost(self) -> int:
        """Count the rows overwritten so far; exact once nothing appends any more."""
        return max(0, self.next_number_issued() - self._received - len(self._rows))

    def next_number_issued(self) -> int:
        """Tell how many rows were begun, without drawing a number."""
        return int(self._issued.__reduce__()[1][0])


def as_array(rows: list[tuple[Any, ...]], width: int = ROW) -> NDArray[np.int64]:
    """Rows of `width` integers as an int64 array of shape [rows, width]."""
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * width)
    return flat.reshape(-1, width)
