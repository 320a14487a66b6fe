"""A recording: a header, one row per cycle, one row per span; inert data that is loaded, queried and saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spantrace.files import written_whole
from spantrace.frames import Frame, encode, pack_rows
from spantrace.spans import SPAN_ID, Kind, Track

SCHEMA = 1
MAGIC = "spantrace"
Header = dict[str, Any]


@dataclass(frozen=True)
class Spans:
    """Columns of n spans; times are CLOCK_MONOTONIC nanoseconds, GPU spans mapped onto that clock."""

    name: NDArray[np.int16]
    track: NDArray[np.int8]
    lane: NDArray[np.int16]
    cycle: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True)
class Cycles:
    """Columns of n cycles; `drafted` and `accepted` are [n, K]: requests per draft position.

    `period` is the time to the next cycle's start in ns, -1 where no cycle follows.
    `drafting` counts the requests whose drafts this cycle verified. `detail` says that every span of the cycle and of
    its neighbours, into which its work reaches, was recorded; of other cycles the spans and the graph are not known.
    """

    step: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    period: NDArray[np.int64]
    batch: NDArray[np.int32]
    scheduled_tokens: NDArray[np.int32]
    drafting: NDArray[np.int32]
    drafted: NDArray[np.int32]
    accepted: NDArray[np.int32]
    graph_mode: NDArray[np.int8]
    kind: NDArray[np.int8]
    detail: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Recording:
    """One server's cycles over a window; `partial` says that the file ends before the recording did."""

    header: Header
    cycles: Cycles
    spans: Spans
    partial: bool = False

    def durations(self, name: str, track: Track = Track.HOST) -> NDArray[np.float64]:
        """Nanoseconds spent in `name` per cycle, shape [cycles]; NaN where the cycle has no such span."""
        at = (self.spans.name == SPAN_ID[name]) & (self.spans.track == track)
        cycle = self.spans.cycle[at]
        length = (self.spans.end - self.spans.start)[at].astype(np.float64)
        total = np.bincount(cycle, weights=length, minlength=len(self.cycles))
        count = np.bincount(cycle, minlength=len(self.cycles))
        return np.where(count > 0, total, np.nan)

    def calls(self, name: str, track: Track = Track.HOST) -> NDArray[np.int64]:
        """How often each cycle entered `name`, shape [cycles]."""
        at = (self.spans.name == SPAN_ID[name]) & (self.spans.track == track)
        return np.bincount(self.spans.cycle[at], minlength=len(self.cycles)).astype(np.int64)

    def of_kind(self, kind: Kind = Kind.STEADY) -> Recording:
        """The same recording with only the cycles of `kind` and their spans."""
        return self.only(self.cycles.kind == kind)

    def only(self, chosen: NDArray[np.bool_]) -> Recording:
        """The same recording with only these cycles, bool [cycles], and their spans."""
        number = np.cumsum(chosen) - 1
        found = self.with_spans(chosen[self.spans.cycle])
        cycles = {name: column[chosen] for name, column in vars(self.cycles).items()}
        return replace(found, cycles=Cycles(**cycles), spans=replace(found.spans, cycle=number[found.spans.cycle]))

    def with_spans(self, kept: NDArray[np.bool_]) -> Recording:
        """The same recording with only these spans, bool [spans], and all its cycles."""
        return replace(self, spans=Spans(**{name: column[kept] for name, column in vars(self.spans).items()}))

    def save(self, path: Path, *, replace: bool = True) -> None:
        """Write the recording; an existing file is replaced only once the new one is whole, or not at all."""
        with written_whole(path, replace=replace) as file:
            for frame in self._frames():
                file.write(encode(frame))

    def _frames(self) -> Iterator[Frame]:
        yield {"type": MAGIC, "schema": SCHEMA, "header": self.header}
        for table in (self.cycles, self.spans):
            for name, column in vars(table).items():
                columns = column.astype(np.int64).reshape(len(column), *(column.shape[1:] or (1,)))
                yield {"type": "column", "table": type(table).__name__, "name": name, **pack_rows(columns)}
        yield {"type": "partial" if self.partial else "end"}
