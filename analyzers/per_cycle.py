"""A recording's rows summed to one value per span, track and cycle: what every other analysis starts from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.statistics import Cost, cost
from spantrace.recording import Recording
from spantrace.spans import GRAPH_PARTS, OVERLAID, PARENT, SPAN_ID, SPAN_NAMES, WAITS, Kind, Track

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
OWN_THREAD = frozenset({"output.emit"})
"""Spans that a server has on a thread beside the engine's: shown there, but no part of the cycle's host work."""
STEADY = frozenset({Kind.STEADY})


@dataclass(frozen=True)
class PerCycle:
    """Values of the n chosen cycles: `period` [n] in ns, `known` [2, n], `total` (ns) and `calls` [names, 2, n].

    `known` says of which cycles the spans on a track are known: of those in detail, on the GPU of those of them whose
    events were read. `total` is NaN in the others and where a cycle has no such row. `beside` are the spans on a
    thread of their own. A GPU parent without rows of its own is the hull of its children, idle gaps included; what
    several threads wait counts once, and in the cycle in which they do.
    """

    chosen: Mask
    period: Floats
    known: Mask
    total: Floats
    calls: Ints
    beside: frozenset[str]

    def of(self, name: str, track: Track = Track.HOST) -> Floats:
        """Nanoseconds in `name` per cycle [n], NaN where absent."""
        values: Floats = self.total[SPAN_ID[name], track]
        return values

    def cost(self, name: str, track: Track) -> Cost | None:
        """What a span costs, of the cycles of which that is known; None if none has it.

        A part of a graph is known of the cycles whose graphs were replayed with marks.
        """
        among = self.known[track]
        if name in GRAPH_PARTS:
            among = among & (self.calls[SPAN_ID[name], track] > 0)
        return cost(self.of(name, track)[among], self.period[among])


def chosen_cycles(recording: Recording, kinds: frozenset[Kind]) -> Mask:
    """Which cycles are of one of `kinds`, [cycles]."""
    wanted = np.array([kind in kinds for kind in Kind])
    found: Mask = wanted[recording.cycles.kind]
    return found


def timed_cycles(recording: Recording) -> Mask:
    """Which cycles have GPU rows, [cycles]: events are recorded in detail only, and the last may never be read."""
    spans = recording.spans
    count = np.bincount(spans.cycle[spans.track == Track.GPU], minlength=len(recording.cycles))
    found: Mask = count > 0
    return found


def periods(recording: Recording) -> Floats:
    """Start-to-start times in ns, [cycles]; NaN where no cycle follows at once."""
    period = recording.cycles.period
    return np.where(period < 0, np.nan, period.astype(np.float64))


def processes_of(recording: Recording) -> Ints:
    """The process of every span as an index from 0, [spans]; one process where the header names no lanes."""
    lanes = recording.header.get("lanes") or []
    named = {lane: index for index, lane in enumerate(dict.fromkeys(int(lane["process"]) for lane in lanes))}
    table = np.array([named[int(lane["process"])] for lane in lanes] or [0], dtype=np.int64)
    found: Ints = table[np.minimum(recording.spans.lane, len(table) - 1)]
    return found


def measure(recording: Recording, kinds: frozenset[Kind] = STEADY) -> PerCycle:
    """Sum the rows of the cycles of `kinds`, in one pass over all rows."""
    spans, cycles, names = recording.spans, len(recording.cycles), len(SPAN_NAMES)
    key = (spans.name.astype(np.int64) * 2 + spans.track) * cycles + spans.cycle
    shape, size = (names, 2, cycles), names * 2 * cycles
    calls = np.bincount(key, minlength=size).reshape(shape)
    lengths = (spans.end - spans.start).astype(np.float64)
    total = np.bincount(key, weights=lengths, minlength=size).astype(np.float64).reshape(shape)
    total[calls == 0] = np.nan
    _add_hulls(recording, total)
    _join_waits(recording, total)
    detail = recording.cycles.detail
    known = np.stack([detail, detail & timed_cycles(recording)])
    total[:, ~known] = np.nan
    chosen = chosen_cycles(recording, kinds)
    calls = calls[:, :, chosen].astype(np.int64)
    return PerCycle(chosen, periods(recording)[chosen], known[:, chosen], total[:, :, chosen], calls, beside(recording))


def _join_waits(recording: Recording, total: Floats) -> None:
    spans, low = recording.spans, recording.cycles.start
    high = np.maximum(low + recording.cycles.period, recording.cycles.end)
    for name in WAITS:
        rows = (spans.name == SPAN_ID[name]) & (spans.track == Track.HOST)
        if len(np.unique(spans.lane[rows])) > 1:
            own = total[SPAN_ID[name], Track.HOST]
            np.copyto(own, Union(*intervals(recording, rows)).within(low, high), where=~np.isnan(own))


def _add_hulls(recording: Recording, total: Floats) -> None:
    spans = recording.spans
    gpu = spans.track == Track.GPU
    for parent in {parent for parent in PARENT.values() if parent not in (None, "cycle")}:
        children = [SPAN_ID[name] for name, above in PARENT.items() if above == parent]
        rows = gpu & np.isin(np.arange(len(SPAN_NAMES)), children)[spans.name]
        if not rows.any():
            continue
        cycle = spans.cycle[rows]
        first = np.full(total.shape[-1], np.iinfo(np.int64).max)
        last = np.full(total.shape[-1], np.iinfo(np.int64).min)
        np.minimum.at(first, cycle, spans.start[rows])
        np.maximum.at(last, cycle, spans.end[rows])
        own = total[SPAN_ID[parent], Track.GPU]
        np.copyto(own, (last - first).astype(np.float64), where=np.isnan(own) & (last > first))


def beside(recording: Recording) -> frozenset[str]:
    """The spans of `OWN_THREAD`, less those that share the cycle's lane, as in the built-in cycle."""
    spans = recording.spans
    on_host = spans.track == Track.HOST
    lanes = {name: spans.lane[on_host & (spans.name == SPAN_ID[name])] for name in (*OWN_THREAD, "cycle")}
    return frozenset(name for name in OWN_THREAD if not np.isin(lanes[name], lanes["cycle"]).any())


def gpu_rows(recording: Recording, work: str) -> Mask:
    """Which rows are of the GPU's "kernels" or "copies", [spans]: none where its spans are of event pairs."""
    lanes = [number for number, lane in enumerate(recording.header.get("lanes") or []) if lane.get("gpu") == work]
    found: Mask = (recording.spans.track == Track.GPU) & np.isin(recording.spans.lane, lanes)
    return found


def host_rows(recording: Recording, *, waits: bool) -> Mask:
    """Which rows are host work of the cycle and, with `waits`, its waits too, [spans]; other threads' are neither."""
    apart = beside(recording) | OVERLAID | {"cycle"} | (frozenset() if waits else WAITS)
    wanted = np.array([name not in apart for name in SPAN_NAMES])
    found: Mask = (recording.spans.track == Track.HOST) & wanted[recording.spans.name]
    return found


def intervals(recording: Recording, rows: Mask) -> tuple[Ints, Ints]:
    """Starts and ends of some rows, [rows] each."""
    return recording.spans.start[rows], recording.spans.end[rows]


def work(recording: Recording, among: Mask | None = None) -> tuple[Ints, Ints]:
    """Starts and ends of the stretches in which a thread works in a span of the cycle: in one and in no wait.

    A wait inside a span, such as V1's for the sampled tokens, is cut out of that span and of nothing else's.
    """
    rows = host_rows(recording, waits=False) if among is None else host_rows(recording, waits=False) & among
    waiting = host_rows(recording, waits=True) & ~host_rows(recording, waits=False)
    lanes = recording.spans.lane
    parts = [_without(recording, rows & (lanes == lane), waiting & (lanes == lane)) for lane in np.unique(lanes[rows])]
    if not parts:
        return intervals(recording, rows)
    return np.concatenate([start for start, _ in parts]), np.concatenate([end for _, end in parts])


def _without(recording: Recording, rows: Mask, holes: Mask) -> tuple[Ints, Ints]:
    """The stretches that are in one of `rows` and in none of `holes`."""
    (start, end), (hole_start, hole_end) = intervals(recording, rows), intervals(recording, holes)
    at = np.concatenate([start, end, hole_start, hole_end])
    step = np.concatenate([np.ones(len(start)), -np.ones(len(end))]).astype(np.int64)
    hole_step = np.concatenate([np.ones(len(hole_start)), -np.ones(len(hole_end))]).astype(np.int64)
    order = np.argsort(at, kind="stable")
    inside = np.cumsum(np.concatenate([step, 0 * hole_step])[order])
    in_hole = np.cumsum(np.concatenate([0 * step, hole_step])[order])
    at = at[order]
    kept = (inside > 0) & (in_hole == 0)
    return at[:-1][kept[:-1]], at[1:][kept[:-1]]


class Union:
    """The union of intervals [start, end), to be measured in windows; overlaps count once."""

    def __init__(self, start: Ints, end: Ints) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        opens = np.append(True, start[1:] > end[:-1])[: len(start)]
        self._begin, self._finish = start[opens], end[np.append(opens[1:], True)[: len(start)]]
        self._whole = np.concatenate([[0], np.cumsum(self._finish - self._begin)])

    def within(self, low: Ints, high: Ints) -> Floats:
        """Nanoseconds of each window [low, high) that the union covers."""
        return (self._before(high) - self._before(low)).astype(np.float64)

    def _before(self, time: Ints) -> Ints:
        if not len(self._begin):
            return np.zeros(len(time), dtype=np.int64)
        index = np.searchsorted(self._begin, time, side="right")
        unfinished = np.maximum(self._finish[np.maximum(index - 1, 0)] - time, 0)
        counted: Ints = self._whole[index] - np.where(index > 0, unfinished, 0)
        return counted
