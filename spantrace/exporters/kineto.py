"""Writes a recording as a trace of torch.profiler's form, which Perfetto, HTA and the like open.

Each cycle is a `ProfilerStep#N`, each host span a `user_annotation` on its thread; a GPU span is a `kernel` (from CUDA
events it is the time between two, idle gaps included) under a `gpu_user_annotation` on its stream, tied by
`correlation` to the host span that launched it. The times are exact: decimals of microseconds on the monotonic clock,
with `baseTimeNanoseconds` to the wall clock. `spantrace.importers.exported` makes the recording of it again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spantrace.files import written_whole
from spantrace.naming import Ints
from spantrace.recording import Recording
from spantrace.shareable import shareable_header
from spantrace.spans import SPAN_NAMES, GraphMode, Kind, Track

SUFFIX = ".pt.trace.json.gz"
_DEVICE = 0
Event = dict[str, Any]


def write(recording: Recording, path: Path) -> None:
    """Write the trace, packed; SpantraceError where the file cannot be written, and then there is none."""
    with written_whole(path) as plain, gzip.open(plain, "wt", encoding="utf-8", compresslevel=6) as file:
        head = json.dumps(_head(recording), indent=1)
        file.write(f'{head[:-2]},\n "traceEvents": [\n')
        for number, event in enumerate(_events(recording)):
            file.write(f"{',' if number else ''}{_text(event)}\n")
        file.write("]}\n")


def _head(recording: Recording) -> Event:
    untold = {"untold": len(recording.header.get("notes") or [])}
    header = shareable_header({**recording.header, **untold, "partial": recording.partial})
    name = (header["gpu"] or {}).get("name")
    return {
        "schemaVersion": 1,
        "spantrace": header,
        "deviceProperties": [{"id": _DEVICE, "name": name}] if name else [],
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
    lanes = _lanes(recording)
    yield from _named(recording, lanes)
    yield from _steps(recording, lanes[0][0])
    spans, correlation = recording.spans, _correlations(recording)
    columns = (spans.name, spans.track, spans.lane, spans.cycle, spans.start, spans.end, correlation)
    for row in zip(*(column.tolist() for column in columns), strict=True):
        name, track, lane, cycle, start, end, tie = row
        process, gpu = lanes[lane] if lane < len(lanes) else (0, None)
        event = {"ph": "X", "name": SPAN_NAMES[name], "tid": lane, "ts": start, "dur": end - start}
        args: Event = {"cycle": cycle, **({"correlation": tie} if tie else {})}
        if track == Track.HOST:
            yield {**event, "cat": "user_annotation", "pid": process, "args": args}
            if tie:
                yield {"ph": "s", "id": tie, "pid": process, "tid": lane, "ts": start, "cat": "ac2g", "name": "ac2g"}
        else:
            yield from _on_the_gpu(event, args, lane, copies=gpu == "copies")


def _on_the_gpu(event: Event, args: Event, stream: int, *, copies: bool) -> Iterator[Event]:
    args |= {"device": _DEVICE, "stream": stream}
    yield {**event, "cat": "gpu_memcpy" if copies else "kernel", "pid": _DEVICE, "args": args}
    if not copies:
        yield {**event, "cat": "gpu_user_annotation", "pid": _DEVICE, "args": args}
    if "correlation" in args:
        yield {"ph": "f", "id": args["correlation"], "pid": _DEVICE, "tid": stream, "ts": event["ts"],
               "cat": "ac2g", "name": "ac2g", "bp": "e"}  # fmt: skip


def _lanes(recording: Recording) -> list[tuple[int, str | None]]:
    """Of each lane its process id and what of the GPU's work it holds, if it is a lane of kernels or copies."""
    pids = [pid for pid, _ in _processes(recording)]
    lanes = recording.header.get("lanes") or [{"process": 0}]
    return [(pids[min(int(lane["process"]), len(pids) - 1)], lane.get("gpu")) for lane in lanes]


def _processes(recording: Recording) -> list[tuple[int, str]]:
    """The id and the role of each process; ids from 1 where they are not known, 0 is the GPU."""
    known = recording.header.get("processes") or [{}]
    return [(int(one.get("pid") or index), str(one.get("role") or "process")) for index, one in enumerate(known, 1)]


def _named(recording: Recording, lanes: list[tuple[int, str | None]]) -> Iterator[Event]:
    """What processes, threads and streams are called."""
    timed = {int(lane) for lane in np.unique(recording.spans.lane[recording.spans.track == Track.GPU])}
    for pid, role in (*_processes(recording), *([(_DEVICE, "GPU")] if timed else [])):
        yield _metadata("process_name", pid, 0, "name", role)
        yield _metadata("process_labels", pid, 0, "labels", f"GPU {_DEVICE}" if pid == _DEVICE else "CPU")
    for number, (pid, _) in enumerate(lanes):
        about = (recording.header.get("lanes") or [{}])[number]
        owner = _DEVICE if number in timed else pid
        yield _metadata("thread_name", owner, number, "name", str(about.get("thread") or "main"))


def _metadata(kind: str, pid: int, tid: int, key: str, value: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {key: value}}


def _steps(recording: Recording, pid: int) -> Iterator[Event]:
    """The cycles, each with all that the recording knows of it."""
    cycles = recording.cycles
    for index in range(len(cycles)):
        start, end = int(cycles.start[index]), int(cycles.end[index])
        args = {
            "cycle": index,
            "step": int(cycles.step[index]),
            "period_ns": int(cycles.period[index]),
            "batch": int(cycles.batch[index]),
            "scheduled_tokens": int(cycles.scheduled_tokens[index]),
            "drafting": int(cycles.drafting[index]),
            "drafted": cycles.drafted[index].tolist(),
            "accepted": cycles.accepted[index].tolist(),
            "graph_mode": GraphMode(cycles.graph_mode[index]).name,
            "kind": Kind(cycles.kind[index]).name,
            "detail": int(cycles.detail[index]),
        }
        yield {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{index}", "pid": pid, "tid": 0,
               "ts": start, "dur": end - start, "args": args}  # fmt: skip


def _correlations(recording: Recording) -> Ints:
    """For each span its tie: a GPU span has that of the host span of its name and cycle that launched it, else 0.

    The k-th GPU span of a name and cycle is tied to the k-th host span, or to the last where there are fewer.
    """
    spans, ties = recording.spans, np.zeros(len(recording.spans.name), dtype=np.int64)
    key = spans.cycle * len(SPAN_NAMES) + spans.name
    host, gpu = (np.flatnonzero(spans.track == track) for track in (Track.HOST, Track.GPU))
    host, gpu = (rows[np.argsort(key[rows], kind="stable")] for rows in (host, gpu))
    first, behind = (np.searchsorted(key[host], key[gpu], side=side) for side in ("left", "right"))
    place = np.arange(len(gpu)) - np.searchsorted(key[gpu], key[gpu], side="left")
    tied = behind > first
    launchers = host[np.minimum(first + place, behind - 1)[tied]]
    ties[gpu[tied]] = launchers + 1
    ties[launchers] = launchers + 1
    return ties
