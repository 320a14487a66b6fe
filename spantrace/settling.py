"""The cycles of a recording under way, each once: its host spans when they are settled, its GPU spans when they come.

A cycle is settled when so long has passed since it began that the server has sent all its rows. The GPU's come later,
for the server reads its events seldom: they are joined with the rows of then, which are kept for that, up to a bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spantrace.errors import SpantraceError
from spantrace.frames import Frame, pack_rows, unpack_rows
from spantrace.header import complete_header
from spantrace.joining import join
from spantrace.naming import Ints
from spantrace.recording import Header, Recording
from spantrace.spans import Kind, Track

SETTLED_NS = 3 * 10**9
"""The server sends what it has recorded every half second, and a step's result comes up to two cycles later."""
_MARGIN_NS = 10**9
"""What a cycle may need of the time before it: the end of idleness, and whether the cycle before was in detail."""
_MOST_KEPT = 1 << 26
_HOST, _LATE = ("rows", "facts"), ("gpu", "parts")
"""Parts of graphs are of no use before the GPU's rows that they are parts of, which come later."""
_NEVER = 1 << 62


@dataclass(frozen=True)
class Settled:
    """Cycles and spans that were not there before: of `fresh` cycles the host's, else the GPU's of earlier cycles."""

    recording: Recording
    fresh: bool


@dataclass
class _Slice:
    """The frames that arrived between two moments of CLOCK_MONOTONIC, and their size in bytes."""

    began: int
    ended: int
    frames: list[Frame]
    size: int


class Settling:
    """Takes frames as they come, in any thread, and gives what has settled, in one other."""

    def __init__(self, header: Header) -> None:
        self._header = {**header, "options": {**header["options"], "warmup": 0}}
        self._warmup = int(header["options"].get("warmup") or 0)
        self._arrived: deque[Frame] = deque()
        self.take = self._arrived.append
        self._about: dict[Any, Frame] = {}
        self._slices: deque[_Slice] = deque()
        self._late: list[Frame] = []
        self._upto = self._last = 0
        self._warm_upto = -1
        self._timed = False

    def settle(self, now_ns: int, *, all_of_it: bool = False) -> Iterator[Settled]:
        """What has settled by now on CLOCK_MONOTONIC, or all that is there; ValueError where frames are damaged."""
        self._sort(now_ns)
        before, self._upto = self._upto, _NEVER if all_of_it else max(self._upto, now_ns - SETTLED_NS)
        yield from self._fresh(before)
        yield from self._timed_since()
        self._drop()

    def forget(self) -> None:
        """Let go of all that has come."""
        self._arrived.clear()
        self._slices.clear()
        self._late.clear()

    def _sort(self, now_ns: int) -> None:
        """Put what has arrived to its like: a slice of the host's, what comes late, and what tells of a process."""
        part = _Slice(self._last, now_ns, [], 0)
        while self._arrived:
            frame = self._arrived.popleft()
            if frame["type"] in _HOST:
                part.frames.append(frame)
                part.size += len(frame.get("data", ())) + 64 * len(frame.get("facts", ()))
            elif frame["type"] in _LATE:
                self._late.append(frame)
            else:
                self._about[frame["type"], frame.get("process")] = frame
                self._timed |= (frame.get("calibration") or {}).get("gpu_event_ns") is not None
        self._slices.append(part)
        self._last = now_ns

    def _fresh(self, before: int) -> Iterator[Settled]:
        """The cycles that began between that moment and the one up to which all is settled now."""
        joined = self._join([part for part in self._slices if part.ended >= before - _MARGIN_NS], [])
        if joined is None:
            return
        start = joined.cycles.start
        found = joined.only((start >= before) & (start < self._upto))
        if len(found.cycles):
            warm = found.cycles.start[found.cycles.kind == Kind.STEADY][: self._warmup]
            self._warmup -= len(warm)
            self._warm_upto = int(warm.max(initial=self._warm_upto))
            yield Settled(self._warmed(found), fresh=True)

    def _timed_since(self) -> Iterator[Settled]:
        """The GPU's spans of cycles that have settled, as far as their times have come."""
        late, self._late = self._late, []
        ready: list[Frame] = []
        times: list[Ints] = []
        reached: dict[Any, int] = {}
        for frame in sorted(late, key=lambda frame: _LATE.index(frame["type"])):
            kind, process, rows = frame["type"], frame["process"], unpack_rows(frame)
            upto = self._upto if kind == "gpu" else min(self._upto, reached.get(process, -1) + 1)
            now = rows[:, 1] < upto
            for chosen, there in ((now, ready), (~now, self._late)):
                if chosen.any():
                    there.append({"type": kind, "process": process, **pack_rows(rows[chosen])})
            if kind == "gpu" and now.any():
                times.append(rows[now, 1])
                reached[process] = max(reached.get(process, -1), int(rows[now, 2].max()))
        if not ready:
            return
        moments = np.concatenate(times)
        first, last = int(moments.min()) - _MARGIN_NS, int(moments.max()) + SETTLED_NS
        joined = self._join([part for part in self._slices if part.ended >= first and part.began <= last], ready)
        if joined is not None:
            found = joined.with_spans(joined.spans.track == Track.GPU)
            timed = np.bincount(found.spans.cycle, minlength=len(found.cycles)) > 0
            yield Settled(self._warmed(found.only(timed)), fresh=False)

    def _warmed(self, found: Recording) -> Recording:
        """The same with the kind of the warm-up's cycles, which only this knows: no join here has the first of them."""
        cycles = found.cycles
        warm = (cycles.kind == Kind.STEADY) & (cycles.start <= self._warm_upto)
        return replace(found, cycles=replace(cycles, kind=np.where(warm, np.int8(Kind.WARMUP), cycles.kind)))

    def _join(self, slices: list[_Slice], late: list[Frame]) -> Recording | None:
        """The recording of these frames, None where they hold no cycle."""
        frames = [*(frame for part in slices for frame in part.frames), *late]
        try:
            return join(complete_header(self._header, list(self._about.values())), frames, partial=True)
        except SpantraceError:
            return None

    def _drop(self) -> None:
        """Forget the slices that no cycle to come needs; those that GPU times may need once they are too much."""
        kept, most = sum(part.size for part in self._slices), _MOST_KEPT if self._timed else -1
        while self._slices and self._slices[0].ended < self._upto - _MARGIN_NS and kept > most:
            kept -= self._slices.popleft().size
