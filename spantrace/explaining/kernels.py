"""The kernels of a window by the span that launched them, and how long the GPU was truly busy.

A kernel belongs to each span in which its launch lies, and counts in the cycle in which it was launched. Busy is the
union of the kernels over all streams, in the cycles in which they ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.explaining.kernel_window import ANCHOR
from spantrace.frames import Frame
from spantrace.importers.kineto import read_trace
from spantrace.importers.launching import Launched, launched
from spantrace.importers.ranges import Ranges, united
from spantrace.importers.trace import Trace
from spantrace.naming import Flags, Ints
from spantrace.ranks import ranks
from spantrace.recording import Recording
from spantrace.spans import SPAN_ID, TREE, Track


@dataclass(frozen=True)
class SpanKernels:
    """What a span launched per cycle: by how many calls, some of them of graphs, with so many kernels as nodes."""

    span: str
    launches: float
    graphs: float
    kernels: float
    nodes: float
    ns: float


@dataclass(frozen=True)
class Kernel:
    """One kernel of the explained span, by name: how often a cycle runs it, and for how many ns in all."""

    name: str
    calls: float
    ns: float


@dataclass(frozen=True)
class KernelWindow:
    """Per cycle of `cycles`: `busy` ns in kernels, over `period` ns; `spans` in the tree's order, `top` of one of them.

    `unlaunched` kernels have no launch in the trace: they count as busy and in no span.
    """

    cycles: int
    period: float
    busy: float
    spans: tuple[SpanKernels, ...]
    top: tuple[Kernel, ...]
    unlaunched: int


def kernels_in(recording: Recording, answers: list[Frame], chosen: Flags, span: str) -> KernelWindow | None:
    """The kernels of the chosen cycles of a recording, by the trace with most of them; None where no GPU ran any.

    Of a recording of one rank it is that rank's trace.
    """
    own = ranks(recording.header).get(recording.header.get("rank", -1))
    for answer, trace, process in _by_size(answers, own):
        if not len(trace.kernels):
            return None
        if not chosen.any():
            raise SpantraceError(
                "no whole steady cycle lies in the window of kernels; ask for more", EXIT_NOT_COMPARABLE
            )
        ranges, windows = _on_the_traces_clock(recording, _offset(trace, answer), chosen, process)
        return _window(trace, ranges, windows, span)
    return None


def _by_size(answers: list[Frame], own: int | None) -> list[tuple[Frame, Trace, int]]:
    """Each process's answer, trace and place, or the `own` process's alone, that with most kernels first."""
    places = [place for place, answer in enumerate(answers) if answer["trace"] and own in (None, place)]
    read = [(answers[place], _read(answers[place]["trace"]), place) for place in places]
    return sorted(read, key=lambda one: -len(one[1].kernels))


def _read(data: bytes) -> Trace:
    with TemporaryDirectory(prefix="spantrace-") as folder:
        path = Path(folder) / "trace.json.gz"
        path.write_bytes(data)
        return read_trace(path)


def _offset(trace: Trace, answer: Frame) -> int:
    """Nanoseconds to add to CLOCK_MONOTONIC for the trace's clock, by the anchor that was opened in the least time."""
    found = trace.annotations.only(trace.named(trace.annotations, lambda name: name == ANCHOR))
    anchors = np.array(answer["anchors"], dtype=np.int64)
    if not len(found) or len(found) != len(anchors):
        raise SpantraceError("the trace of the kernels has lost its anchors; try again", EXIT_NOT_COMPARABLE)
    best = int(np.argmin(anchors[:, 1] - anchors[:, 0]))
    return int(found.start[best]) - int(anchors[best].mean())


def _on_the_traces_clock(recording: Recording, offset: int, chosen: Flags, process: int) -> tuple[Ranges, Ints]:
    """The host spans on a process's main thread in the chosen cycles, and start and end of these cycles, [n, 2]."""
    spans, cycles = recording.spans, recording.cycles
    lanes = [number for number, lane in enumerate(recording.header["lanes"]) if lane["process"] == process]
    at = chosen[spans.cycle] & (spans.track == Track.HOST) & np.isin(spans.lane, lanes[:1])
    start, end = spans.start[at] + offset, spans.end[at] + offset
    ranges = Ranges(spans.name[at].astype(np.int64), np.zeros(int(at.sum()), dtype=np.int64), start, end)
    length = np.where(cycles.period > 0, cycles.period, cycles.end - cycles.start)[chosen]
    begin = cycles.start[chosen] + offset
    return ranges, np.column_stack([begin, begin + length])


def _window(trace: Trace, ranges: Ranges, windows: Ints, span: str) -> KernelWindow:
    work = launched(trace, int(np.bincount(trace.calls.process).argmax()) if len(trace.calls) else 0)
    at = np.flatnonzero(work.kernels_by >= 0)
    by = work.kernels_by[at]
    launching = _launching_thread(work)
    cycle = _window_of(windows, work.calls.start[by])
    cycle[work.calls.thread[by] != launching] = -1
    at, by, cycle = at[cycle >= 0], by[cycle >= 0], cycle[cycle >= 0]
    time, on = work.calls.start[by], np.zeros(len(by), dtype=np.int64)
    held = dict(ranges.enclosing(on, time)) | {SPAN_ID["cycle"]: np.arange(len(by))}
    spans = [
        _span_kernels(name, work, at[held[number]], by[held[number]], cycle[held[number]], len(windows))
        for name in TREE
        if len(held.get(number := SPAN_ID[name], ()))
    ]
    own = at[held.get(SPAN_ID[span], at[:0])]
    return KernelWindow(
        len(windows),
        float((windows[:, 1] - windows[:, 0]).mean()),
        _busy(work, windows) / len(windows),
        tuple(spans),
        _top(trace, work, own, len(windows)),
        int((work.kernels_by < 0).sum()),
    )


def _launching_thread(work: Launched) -> int:
    """The thread that launched most kernels: that of the worker's loop."""
    threads = work.calls.thread[work.kernels_by[work.kernels_by >= 0]]
    return int(np.bincount(threads).argmax()) if len(threads) else -1


def _window_of(windows: Ints, time: Ints) -> Ints:
    """The window that holds each moment, -1 where none does."""
    last = np.searchsorted(windows[:, 0], time, side="right") - 1
    return np.where((last >= 0) & (time < windows[np.maximum(last, 0), 1]), last, -1)


def _span_kernels(span: str, work: Launched, at: Ints, by: Ints, cycle: Ints, cycles: int) -> SpanKernels:
    _, _, start, end = united(np.zeros(len(at), dtype=np.int64), cycle, work.kernels.start[at], work.kernels.end[at])
    calls = np.unique(by)
    counts = (len(calls), work.in_graph[calls].sum(), len(at), work.in_graph[by].sum(), (end - start).sum())
    return SpanKernels(span, *(float(count) / cycles for count in counts))


def _busy(work: Launched, windows: Ints) -> int:
    """Nanoseconds of the windows in which a kernel of any stream ran."""
    size = len(work.kernels)
    one = np.zeros(size, dtype=np.int64)
    _, _, start, end = united(one, one, work.kernels.start, work.kernels.end)
    low, high = windows.T
    return int(np.maximum(np.minimum(end, high[:, None]) - np.maximum(start, low[:, None]), 0).sum())


def _top(trace: Trace, work: Launched, at: Ints, cycles: int) -> tuple[Kernel, ...]:
    """The kernels at these places by name, the longest in all first."""
    names, group = np.unique(work.kernels.name[at], return_inverse=True)
    spent = np.bincount(group, weights=work.kernels.end[at] - work.kernels.start[at], minlength=len(names))
    calls = np.bincount(group, minlength=len(names))
    order = np.argsort(-spent, kind="stable")
    return tuple(
        Kernel(str(trace.labels[names[one]]), float(calls[one]) / cycles, float(spent[one]) / cycles)
        for one in order.tolist()
    )
