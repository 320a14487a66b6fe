"""The ring keeps the newest rows and knows exactly how many it lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spantrace.ring import Ring, as_array


@given(capacity=st.integers(1, 20), rows=st.integers(0, 60), drain_at=st.integers(0, 60))
def test_lost_is_what_was_issued_and_never_drained(capacity: int, rows: int, drain_at: int) -> None:
    ring = Ring(capacity)
    received = 0
    for value in range(rows):
        if value == drain_at:
            received += len(ring.drain())
        ring.append((ring.next_number(), value, 0, 0))
    received += len(ring.drain())
    assert ring.lost() == rows - received


def test_the_newest_rows_survive() -> None:
    ring = Ring(3)
    for value in range(10):
        ring.append((ring.next_number(), value, 0, 0))
    assert [row[1] for row in ring.drain()] == [7, 8, 9]
    assert ring.lost() == 7


def test_rows_become_an_int64_array() -> None:
    array = as_array([(1, 2, 3, 2**62), (5, 6, 7, 8)])
    assert array.dtype == np.int64
    assert array.tolist() == [[1, 2, 3, 2**62], [5, 6, 7, 8]]
    assert as_array([]).shape == (0, 4)
