"""What a recording's header says of windows in which one span was delayed on purpose, or not (spantrace.experiment).

Under `WINDOWS` lies a list of plain maps: the span and its track, by how many `ns` it was delayed, the block, and when
the delay was asked for (`from_ns`), in force everywhere (`begin_ns`), asked away (`end_ns`) and gone (`to_ns`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOWS = "windows"
Ints = NDArray[np.int64]


def touched(header: Mapping[str, Any], start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Which cycles, given by their starts and ends, a delay may have reached."""
    found = np.zeros(len(start), dtype=bool)
    for window in header.get(WINDOWS, []):
        if window["ns"]:
            found |= (end >= window["from_ns"]) & (start <= window["to_ns"])
    return found
