"""The ring keeps the newest rows and knows exactly how many it lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spantrace.ring import ROW, Ring, as_array


@given(capacity=st.integers(1, 20), batches=st.lists(st.integers(0, 60), max_size=5))
def test_each_drain_gives_the_newest_and_counts_the_others(capacity: int, batches: list[int]) -> None:
    ring = Ring(capacity)
    lost = 0
    for batch in batches:
        for value in range(batch):
            ring.put((value, 0, 0))
        kept = min(batch, capacity)
        assert ring.drain()[::ROW] == list(range(batch - kept, batch))
        lost += batch - kept
        assert ring.lost() == lost


def test_rows_become_an_int64_array() -> None:
    array = as_array([1, 2, 2**62, 5, 6, 7])
    assert array.dtype == np.int64
    assert array.tolist() == [[1, 2, 2**62], [5, 6, 7]]
    assert as_array([]).shape == (0, 3)
