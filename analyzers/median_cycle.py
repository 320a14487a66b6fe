"""The one cycle that stands for the others: the real one whose period is nearest the median, as it lay in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzers.co_saturation import gpu_busy, known_cycles
from analyzers.per_cycle import STEADY, Ints, beside
from spantrace.recording import Recording
from spantrace.spans import SPAN_ID, SPAN_NAMES, WAITS, Kind, Track


@dataclass(frozen=True)
class Bar:
    """A span, or a part of one that the cycle's ends cut, in ms from the cycle's start.

    `depth` counts the spans of its lane that it lies within, `of` how many cycles later than the shown one its own is:
    -1 for the one before. A GPU lane's "cycle" is the time in which it is busy, which another profiler's trace tells.
    """

    name: str
    depth: int
    start: float
    end: float
    of: int
    wait: bool


@dataclass(frozen=True)
class Lane:
    """A thread, or a GPU's stream, with its spans in order of time; `gaps` are those between them, (start, end) in ms.

    A thread that does no work of the cycle has none.
    """

    name: str
    track: Track
    bars: tuple[Bar, ...]
    gaps: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class MedianCycle:
    """Cycle number `index` of the recording: of `among` cycles its `period` is the nearest to their median `typical`.

    It ends after `length`, the next one starts after `period`; all in ms.
    """

    index: int
    among: int
    typical: float
    period: float
    length: float
    lanes: tuple[Lane, ...]


def median_cycle(recording: Recording, kinds: frozenset[Kind] = STEADY) -> MedianCycle | None:
    """The cycle of `kinds` at the median period, of those whose spans are known, on the GPU too where there is one.

    None where there is no such cycle. What neighbouring cycles do in its period is in it.
    """
    candidates = np.flatnonzero(known_cycles(recording, kinds))
    if not len(candidates):
        return None
    cycles, typical = recording.cycles, float(np.median(recording.cycles.period[candidates]))
    busy = gpu_busy(recording, kinds)
    if busy is not None and not np.isnan(busy).all():
        candidates = candidates[~np.isnan(busy)]
    index = int(candidates[np.argmin(np.abs(cycles.period[candidates] - typical))])
    start, period = int(cycles.start[index]), int(cycles.period[index])
    return MedianCycle(
        index=index,
        among=len(candidates),
        typical=typical / 1e6,
        period=period / 1e6,
        length=min(int(cycles.end[index]) - start, period) / 1e6,
        lanes=tuple(_lanes(recording, index, start, start + period)),
    )


def _lanes(recording: Recording, index: int, low: int, high: int) -> list[Lane]:
    spans = recording.spans
    whole = (spans.name == SPAN_ID["cycle"]) & (spans.track == Track.HOST)
    within = (spans.start < high) & (spans.end > low) & ~whole
    apart = np.isin(spans.name, [SPAN_ID[name] for name in beside(recording)])
    found = []
    for track in Track:
        for lane in np.unique(spans.lane[within & (spans.track == track)]).tolist():
            rows = np.flatnonzero(within & (spans.track == track) & (spans.lane == lane))
            bars = _bars(recording, rows, index, low, high)
            gaps = () if apart[rows].all() else _gaps(bars, (high - low) / 1e6)
            found.append(Lane(_name(recording.header, track, lane), track, bars, gaps))
    return found


def _bars(recording: Recording, rows: Ints, index: int, low: int, high: int) -> tuple[Bar, ...]:
    spans, around, found = recording.spans, list[int](), []
    for row in rows[np.lexsort((-spans.end[rows], spans.start[rows]))].tolist():
        start, end, name = int(spans.start[row]), int(spans.end[row]), SPAN_NAMES[spans.name[row]]
        while around and around[-1] < end:
            around.pop()
        at = (max(start, low) - low) / 1e6, (min(end, high) - low) / 1e6
        found.append(Bar(name, len(around), *at, int(spans.cycle[row]) - index, name in WAITS))
        around.append(end)
    return tuple(found)


def _gaps(bars: tuple[Bar, ...], period: float) -> tuple[tuple[float, float], ...]:
    """The times from 0 to `period` in which there is no bar."""
    found, covered = [], 0.0
    for bar in bars:
        if bar.start > covered:
            found.append((covered, bar.start))
        covered = max(covered, bar.end)
    return (*found, (covered, period)) if covered < period else tuple(found)


def _name(header: dict[str, Any], track: Track, lane: int) -> str:
    """The GPU, or a process by its role; and the thread or the stream, but for the one that a process has anyway."""
    lanes, processes = header.get("lanes") or [], header.get("processes") or []
    number, thread = (int(lanes[lane]["process"]), str(lanes[lane]["thread"])) if lane < len(lanes) else (0, "main")
    role = str(processes[number].get("role") or "host") if number < len(processes) else "host"
    whose = "GPU" if track is Track.GPU else role
    if thread in ("main", "MainThread", "GPU stream"):
        return whose
    return thread if thread.startswith(whose) else f"{whose}, {thread}"
