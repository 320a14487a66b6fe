"""Makes a recording of a trace in which cycles were found: spans of annotations, GPU spans of kernels, and notes.

A kernel belongs to the span in which it was launched and to all that enclose it, a kernel outside any span to the
cycle; one whose launch is not in the trace belongs to the cycle in which it ran. Per span and cycle the kernels of all
streams are united, so that time in which two of them run counts once. Copies are a lane of their own.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np

from spantrace.importers.annotations import Batch, batch_of, communicates, span_of, waits
from spantrace.importers.exported import recording_again
from spantrace.importers.finding import Found, find_cycles
from spantrace.importers.launching import Launched, launched
from spantrace.importers.noting import counts, notes
from spantrace.importers.ranges import Ranges, united
from spantrace.importers.trace import Events, Trace
from spantrace.naming import Flags, Ints, nested_in_own_kind
from spantrace.recording import SCHEMA, Cycles, Header, Recording, Spans
from spantrace.spans import SPAN_ID, GraphMode, Kind, Track

CYCLE, WAIT = SPAN_ID["cycle"], SPAN_ID["output.wait"]
_EARLIEST_NS = 946_684_800 * 10**9
"""The year 2000: a trace whose times begin before it does not tell the wall clock."""


def recording_of(trace: Trace) -> Recording:
    """The trace's cycles with their spans; SpantraceError where it has no two cycles."""
    if trace.about is not None:
        return recording_again(trace)
    found = find_cycles(trace)
    work = launched(trace, found.process)
    host = _host_ranges(trace, found)
    work = _within_the_cycles(work, found)
    lanes, parts = _host_parts(trace, found, host)
    for copies in (False, True):
        said = None if copies else trace.named(work.kernels, communicates)
        gpu = _gpu_part(found, host, work, len(lanes), said)
        if len(gpu.start):
            parts.append(gpu)
            lanes.append({"process": 0, "thread": f"GPU {_GPU_LANES[copies]}", "gpu": _GPU_LANES[copies]})
    columns = {name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    order = np.argsort(columns["start"], kind="stable")
    header = _header(trace, found, work, lanes, annotated=bool((host.name != WAIT).any()))
    return Recording(header, _cycles(trace, found), Spans(**{k: v[order] for k, v in columns.items()}), trace.cut)


_GPU_LANES = ("kernels", "copies")


def _host_ranges(trace: Trace, found: Found) -> Ranges:
    """Annotated spans, and the waits of the cycles' thread, of the process that has the cycles."""
    rows = trace.annotations.only(trace.annotations.process == found.process)
    known = {number: span_of(label) for number, label in enumerate(trace.labels) if isinstance(label, str)}
    names = np.array([-1 if (span := known.get(number)) is None else span for number in range(len(trace.labels))])
    annotated = rows.only(names[rows.name] >= 0)
    blocking = trace.calls.only((trace.calls.process == found.process) & (trace.calls.thread == found.thread))
    blocking = blocking.only(trace.named(blocking, waits))
    parts = [(names[annotated.name], annotated), (np.full(len(blocking), WAIT), blocking)]
    name, thread, start, end = (
        np.concatenate([np.asarray(column, dtype=np.int64) for column in columns])
        for columns in zip(*((name, one.thread, one.start, one.end) for name, one in parts), strict=True)
    )
    order = np.lexsort((-end, start))
    name, thread, start, end = name[order], thread[order], start[order], end[order]
    kept = ~nested_in_own_kind(name, thread, start, end)
    return Ranges(name[kept], thread[kept], start[kept], end[kept])


def _host_parts(trace: Trace, found: Found, host: Ranges) -> tuple[list[dict[str, Any]], list[Spans]]:
    """The cycles and the host's spans that begin in one, with a lane for each thread."""
    cycle = _cycle_at(found, host.start)
    threads = [found.thread, *(one for one in np.unique(host.thread[cycle >= 0]).tolist() if one != found.thread)]
    lanes = [{"process": 0, "thread": "main" if not at else f"thread {at}"} for at in range(len(threads))]
    numbers = np.arange(len(found.start))
    parts = [_spans(np.full(len(numbers), CYCLE), Track.HOST, 0, numbers, found.start, found.end)]
    for lane, thread in enumerate(threads):
        here = (host.thread == thread) & (cycle >= 0)
        parts.append(_spans(host.name[here], Track.HOST, lane, cycle[here], host.start[here], host.end[here]))
    return lanes, parts


def _gpu_part(found: Found, host: Ranges, work: Launched, lane: int, said: Flags | None) -> Spans:
    """The GPU's time per span and cycle in kernels, of which those in `said` are communication too; in copies if None.

    Copies are in no span but the cycle.
    """
    rows, by = (work.copies, work.copies_by) if said is None else (work.kernels, work.kernels_by)
    at = rows.start.copy()
    at[by >= 0] = work.calls.start[by[by >= 0]]
    cycle = np.clip(np.searchsorted(found.start, at, side="right") - 1, 0, len(found.start) - 1)
    names, places = [np.full(len(rows), CYCLE)], [np.arange(len(rows))]
    if said is not None:
        names.append(np.full(int(said.sum()), SPAN_ID["communication"]))
        places.append(np.flatnonzero(said))
        launches = np.flatnonzero(by >= 0)
        for span, which in host.enclosing(work.calls.thread[by[launches]], at[launches]):
            names.append(np.full(len(which), span))
            places.append(launches[which])
    place = np.concatenate(places)
    name, cycle, start, end = united(np.concatenate(names), cycle[place], rows.start[place], rows.end[place])
    return _spans(name, Track.GPU, lane, cycle, start, end)


def _within_the_cycles(work: Launched, found: Found) -> Launched:
    """What ran on the GPU between the first cycle's start and the last one's end."""

    def inside(rows: Events) -> Any:
        return (rows.end > found.start[0]) & (rows.start < found.end[-1])

    kernels, copies = inside(work.kernels), inside(work.copies)
    return Launched(
        work.calls,
        work.in_graph,
        work.kernels.only(kernels),
        work.kernels_by[kernels],
        work.copies.only(copies),
        work.copies_by[copies],
    )


def _cycle_at(found: Found, time: Ints) -> Ints:
    """The cycle that holds each moment, -1 where none does."""
    at = np.searchsorted(found.start, time, side="right") - 1
    return np.where((at >= 0) & (time < found.end[np.maximum(at, 0)]), at, -1)


def _spans(name: Ints, track: Track, lane: int, cycle: Ints, start: Ints, end: Ints) -> Spans:
    size = len(name)
    tracks, lanes = np.full(size, track, dtype=np.int8), np.full(size, lane, dtype=np.int16)
    return Spans(name.astype(np.int16), tracks, lanes, cycle, start, end)


def _cycles(trace: Trace, found: Found) -> Cycles:
    size = len(found.start)
    period = np.full(size, -1, dtype=np.int64)
    period[:-1] = np.where(found.idle[:-1], -1, np.diff(found.start))
    if found.left_out and size and not found.idle[-1]:
        period[-1] = found.end[-1] - found.start[-1]
    batches = _batches(trace, found)
    none, zero = np.zeros((size, 0), dtype=np.int32), np.zeros(size, dtype=np.int32)
    return Cycles(
        step=found.step,
        start=found.start,
        end=found.end,
        period=period,
        batch=np.array([one.requests for one in batches], dtype=np.int32),
        scheduled_tokens=np.array([one.tokens for one in batches], dtype=np.int32),
        drafting=zero,
        drafted=none,
        accepted=none,
        graph_mode=np.full(size, GraphMode.UNKNOWN, dtype=np.int8),
        kind=np.array([one.kind for one in batches], dtype=np.int8),
        detail=np.ones(size, dtype=bool),
    )


def _batches(trace: Trace, found: Found) -> list[Batch]:
    """What the engine's annotation says of each cycle's step; steady, of unknown size, where there is none."""
    rows = trace.annotations.only(trace.annotations.process == found.process)
    rows = rows.only(trace.named(rows, lambda name: batch_of(name) is not None))
    batches = [Batch(Kind.STEADY, 0, 0)] * len(found.start)
    for cycle, name in zip(_cycle_at(found, rows.start)[::-1].tolist(), rows.name[::-1].tolist(), strict=True):
        if cycle >= 0:
            batches[cycle] = batch_of(trace.labels[name]) or batches[cycle]
    return batches


def _header(trace: Trace, found: Found, work: Launched, lanes: list[dict[str, Any]], *, annotated: bool) -> Header:
    wall = trace.realtime_offset_ns + int(found.start[0])
    created = datetime.fromtimestamp(wall / 1e9, tz=timezone.utc) if wall > _EARLIEST_NS else None
    label = trace.labels[found.process]
    return {
        "schema": SCHEMA,
        "created": created.isoformat(timespec="seconds") if created else "",
        "monotonic_to_realtime_ns": trace.realtime_offset_ns,
        "host": {},
        "gpu": {"name": trace.gpu_name or "unknown GPU"} if trace.gpu_name or len(trace.kernels) else None,
        "server": {},
        "processes": [{"pid": label if isinstance(label, int) else 0, "role": "process", "lost": 0, "hook_errors": 0}],
        "lanes": lanes,
        "left_out": {"partial": found.left_out} if found.left_out else {},
        "notes": notes(trace, found, work, annotated=annotated),
        "trace": counts(trace, found, work),
    }
