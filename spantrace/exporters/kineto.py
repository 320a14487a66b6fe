"""Writes a recording as a trace of torch.profiler's form, which Perfetto, HTA and the like open.

Each cycle is a `ProfilerStep#N`, each host span a `user_annotation` on its thread; a GPU span is a `kernel` (from CUDA
events it is the time between two, idle gaps included) under a `gpu_user_annotation` on its stream, tied by
`correlation` to the host span that launched it; a part of a CUDA graph is an annotation alone, for its time is in the
graph's kernel; each rank has a device of its own. The times are exact: decimals of
microseconds on the monotonic clock, with `baseTimeNanoseconds` to the wall clock. `spantrace.importers.exported` makes
the recording of it again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spantrace.exporters.layout import lanes_of, launches, processes_of, told_cycles, told_header
from spantrace.files import written_whole
from spantrace.recording import Recording
from spantrace.spans import SPAN_NAMES, WITHIN_OTHERS, Track

SUFFIX = ".pt.trace.json.gz"
Event = dict[str, Any]
_FLOW = {"cat": "ac2g", "name": "ac2g"}


def write(recording: Recording, path: Path) -> None:
    """Write the trace, packed; SpantraceError where the file cannot be written, and then there is none."""
    with written_whole(path) as plain, gzip.open(plain, "wt", encoding="utf-8", compresslevel=6) as file:
        head = json.dumps(_head(recording), indent=1)
        file.write(f'{head[:-2]},\n "traceEvents": [\n')
        for number, event in enumerate(_events(recording)):
            file.write(f"{',' if number else ''}{_text(event)}\n")
        file.write("]}\n")


def _head(recording: Recording) -> Event:
    header = told_header(recording)
    name = (header["gpu"] or {}).get("name")
    devices = sorted({one.rank or 0 for one in processes_of(recording)})
    return {
        "schemaVersion": 1,
        "spantrace": header,
        "deviceProperties": [{"id": device, "name": name} for device in devices] if name else [],
        "distributedInfo": {"backend": "none", "rank": 0, "world_size": 1},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": int(header.get("monotonic_to_realtime_ns") or 0),
    }


def _text(event: Event) -> str:
    """An event as JSON, its times in nanoseconds as exact decimals of microseconds."""
    times = "".join(f', "{key}": {_microseconds(event.pop(key))}' for key in ("ts", "dur") if key in event)
    return f"{json.dumps(event)[:-1]}{times}}}"


def _microseconds(nanoseconds: int) -> str:
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03d}"


def _events(recording: Recording) -> Iterator[Event]:
    processes, lanes = processes_of(recording), lanes_of(recording)
    yield from _named(recording)
    yield from _steps(recording, processes[lanes[0].process].pid)
    spans = recording.spans
    columns = (spans.name, spans.track, spans.lane, spans.cycle, spans.start, spans.end, launches(recording))
    for row in zip(*(column.tolist() for column in columns), strict=True):
        name, track, lane, cycle, start, end, tie = row
        process = processes[lanes[lane].process]
        event = {"ph": "X", "name": SPAN_NAMES[name], "tid": lane, "ts": start, "dur": end - start}
        args: Event = {"cycle": cycle, **({"correlation": tie} if tie else {})}
        if track == Track.HOST:
            yield {**event, "cat": "user_annotation", "pid": process.pid, "args": args}
            if tie:
                yield {"ph": "s", "id": tie, "pid": process.pid, "tid": lane, "ts": start, **_FLOW}
        else:
            event |= {"pid": process.rank or 0, "args": {**args, "device": process.rank or 0, "stream": lane}}
            yield from _on_the_gpu(event, copies=lanes[lane].gpu == "copies")


def _on_the_gpu(event: Event, *, copies: bool) -> Iterator[Event]:
    if event["name"] not in WITHIN_OTHERS:
        yield {**event, "cat": "gpu_memcpy" if copies else "kernel"}
    if not copies:
        yield {**event, "cat": "gpu_user_annotation"}
    if tie := event["args"].get("correlation"):
        yield {"ph": "f", "id": tie, "pid": event["pid"], "tid": event["tid"], "ts": event["ts"], **_FLOW, "bp": "e"}


def _named(recording: Recording) -> Iterator[Event]:
    """What processes, threads and streams are called."""
    processes, lanes = processes_of(recording), lanes_of(recording)
    timed = {int(lane) for lane in np.unique(recording.spans.lane[recording.spans.track == Track.GPU])}
    devices = {number: processes[lanes[number].process].rank or 0 for number in timed}
    called = [(one.pid, one.role, "CPU") for one in processes]
    called += [(device, "GPU", f"GPU {device}") for device in sorted(set(devices.values()))]
    for pid, name, label in called:
        yield _metadata("process_name", pid, 0, "name", name)
        yield _metadata("process_labels", pid, 0, "labels", label)
    for number, lane in enumerate(lanes):
        owner = devices.get(number, processes[lane.process].pid)
        yield _metadata("thread_name", owner, number, "name", lane.thread)


def _metadata(kind: str, pid: int, tid: int, key: str, value: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {key: value}}


def _steps(recording: Recording, pid: int) -> Iterator[Event]:
    """The cycles, each with all that the recording knows of it."""
    bounds = zip(recording.cycles.start.tolist(), recording.cycles.end.tolist(), strict=True)
    for args, (start, end) in zip(told_cycles(recording), bounds, strict=True):
        yield {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{args['cycle']}", "pid": pid, "tid": 0,
               "ts": start, "dur": end - start, "args": args}  # fmt: skip
