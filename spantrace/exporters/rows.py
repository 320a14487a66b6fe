"""A recording as a table of one row a span, which the exporters of tables write each in its own form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spantrace.exporters.layout import lanes_of, processes_of
from spantrace.recording import Recording
from spantrace.spans import SPAN_NAMES, Kind, Track

_PIECE = 1 << 16
NUMBERS = ("cycle", "step", "batch", "pid", "rank", "begin_ns", "duration_ns")
"""The columns of integers; `rank` is the only one with gaps, where a process is no worker."""
NAMES = ("cycle", "step", "kind", "batch", "detail", "span", "track", "process", "pid", "rank", "thread", "begin_ns",
         "duration_ns")  # fmt: skip
"""`begin_ns` is CLOCK_MONOTONIC's, `kind`, `batch` and `detail` are the cycle's."""


def pieces(recording: Recording) -> Iterator[dict[str, list[Any]]]:
    """The rows in order of their beginning, in tables of so many that they fit into memory; one where there is none."""
    for first in range(0, max(len(recording.spans.name), 1), _PIECE):
        yield _piece(recording, slice(first, first + _PIECE))


def _piece(recording: Recording, rows: slice) -> dict[str, list[Any]]:
    spans, cycles, lanes = recording.spans, recording.cycles, lanes_of(recording)
    cycle, lane = spans.cycle[rows], [lanes[number] for number in spans.lane[rows].tolist()]
    processes = processes_of(recording)
    process = [processes[one.process] for one in lane]
    columns = (
        cycle.tolist(),
        cycles.step[cycle].tolist(),
        [Kind(kind).name.lower() for kind in cycles.kind[cycle].tolist()],
        cycles.batch[cycle].tolist(),
        cycles.detail[cycle].tolist(),
        [SPAN_NAMES[name] for name in spans.name[rows].tolist()],
        [Track(track).name.lower() for track in spans.track[rows].tolist()],
        [one.role for one in process],
        [one.pid for one in process],
        [one.rank for one in process],
        [one.thread for one in lane],
        spans.start[rows].tolist(),
        (spans.end - spans.start)[rows].tolist(),
    )
    return dict(zip(NAMES, columns, strict=True))
