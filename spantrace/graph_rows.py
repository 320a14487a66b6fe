"""Parts of graphs on the host's clock: each inside the GPU span in which its graph was replayed."""

from __future__ import annotations

import numpy as np

from spantrace.naming import Ints
from spantrace.spans import PARENT, SPAN_ID, SPAN_NAMES

_PARENT_ID = np.array([SPAN_ID.get(PARENT[name] or "", -1) for name in SPAN_NAMES], dtype=np.int64)


def with_parts(whole: dict[str, Ints], gpu: Ints, parts: Ints) -> dict[str, Ints]:
    """The columns of GPU spans, and behind them those of the `parts` whose replay was in one of them.

    `gpu` [n, 5] are the spans' raw rows; parts [m, 4] hold span, host time of the replay, and begin and end in ns after
    the span's own begin on the GPU.
    """
    parts = parts[(parts[:, 0] >= 0) & (parts[:, 0] < len(SPAN_NAMES))]
    if not len(parts) or not len(gpu):
        return whole
    order = np.argsort(gpu[:, 1], kind="stable")
    last = np.searchsorted(gpu[order, 1], parts[:, 1], side="right") - 1
    row = order[np.maximum(last, 0)]
    inside = (last >= 0) & (parts[:, 1] <= gpu[row, 2]) & (whole["name"][row] == _PARENT_ID[parts[:, 0]])
    row, parts = row[inside], parts[inside]
    added = {name: column[row] for name, column in whole.items()}
    added |= {"name": parts[:, 0], "start": whole["start"][row] + parts[:, 2], "end": whole["start"][row] + parts[:, 3]}
    return {name: np.concatenate([column, added[name]]) for name, column in whole.items()}
