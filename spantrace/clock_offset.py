"""Where the GPU's clock lies on the host's, by what events say of when they were recorded and passed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spantrace.naming import Ints


def clock_offset(gpu: Ints, block_ns: int = 1_000_000_000) -> Ints:
    """Nanoseconds to add to each row's GPU times; rows hold site, host start and end, GPU start and end.

    No event passes before it is recorded, and an idle GPU passes it at once: so the offset is at least the largest
    host-less-GPU difference of each second, and lies where the upper hull of those does, which a steady drift keeps
    straight (the estimate of Moon, Skelly and Towsley, 1999). A closing event is recorded at the host row's end; an
    opening one just before its start, unless it is the closing event of the span before. In between the host may be
    interrupted, so that the largest hundredth of the opening ones is left out.

    It is good to some tens of microseconds where the GPU is idle now and then. It is too small by the shortest delay of
    an event from one corner of the hull to the next: by up to a cycle where the GPU never is.
    """
    if not len(gpu):
        return gpu[:, 0]
    _, host_start, host_end, gpu_start, gpu_end = gpu.T
    opens = np.append(True, gpu_start[1:] != gpu_end[:-1])
    blocks, first = np.unique((host_start - host_start[0]) // block_ns, return_index=True)
    columns = (np.split(column, first[1:]) for column in (host_end - gpu_end, host_start - gpu_start, opens))
    largest = np.array([_largest(closing, opening[own]) for closing, opening, own in zip(*columns, strict=True)])
    centre = host_start[0] + (blocks + 0.5) * block_ns
    gained = (largest - largest[0]).astype(np.float64)
    corners = _upper_hull(centre, gained)
    drift = np.interp(host_start, centre[corners], gained[corners])
    offset: Ints = largest[0] + np.rint(drift).astype(np.int64)
    return offset


def _upper_hull(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[int]:
    """The corners of the least concave line above all points, x rising (Andrew's monotone chain)."""
    corners: list[int] = []
    for point in range(len(x)):
        while len(corners) > 1:
            before, last = corners[-2:]
            if (y[last] - y[before]) * (x[point] - x[before]) > (y[point] - y[before]) * (x[last] - x[before]):
                break
            corners.pop()
        corners.append(point)
    return corners


def _largest(closing: Ints, opening: Ints) -> int:
    kept = np.sort(opening)[: len(opening) - len(opening) // 100]
    return int(kept.max(initial=closing.max()))
