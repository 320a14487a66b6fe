"""Makes the recording anew of a trace that spantrace exported: its events say of which cycle and span they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from spantrace.importers.trace import Events, Trace
from spantrace.naming import Ints
from spantrace.recording import SCHEMA, Cycles, Header, Recording, Spans
from spantrace.shareable import TRACE
from spantrace.spans import SPAN_ID, SPAN_NAMES, WITHIN_OTHERS, GraphMode, Kind, Track


def recording_again(trace: Trace) -> Recording:
    """The recording that was exported, less what does not leave the machine; ValueError where it is damaged."""
    assert trace.about is not None
    steps = sorted(trace.steps, key=lambda step: int(step["cycle"]))
    if [int(step["cycle"]) for step in steps] != list(range(len(steps))) or not steps:
        raise ValueError("a cycle is missing")
    cycles = _cycles(steps)
    parts = [_part(trace, trace.annotations, Track.HOST)]
    parts += [_part(trace, events, Track.GPU, without=WITHIN_OTHERS) for events in (trace.kernels, trace.copies)]
    if trace.parts is not None:
        parts.append(_part(trace, trace.parts, Track.GPU, without=frozenset(SPAN_NAMES) - WITHIN_OTHERS))
    columns = {name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    kept = (columns["cycle"] >= 0) & (columns["cycle"] < len(cycles))
    order = np.flatnonzero(kept)[np.argsort(columns["start"][kept], kind="stable")]
    header = {"schema": SCHEMA, **trace.about}
    _check(header)
    untold = int(header.pop("untold", 0))
    header["notes"] = [f"{untold} doubts that the recording itself tells were not exported"] if untold else []
    partial = bool(header.pop("partial", False)) or trace.cut
    return Recording(header, cycles, Spans(**{k: v[order] for k, v in columns.items()}), partial)


def _check(header: Header) -> None:
    """ValueError where the header lacks what an export always has."""
    processes = len(header["processes"]) or 1
    for lane in header["lanes"]:
        number = lane.get("process")
        if not isinstance(number, int) or not 0 <= number < processes or "thread" not in lane:
            raise ValueError("a lane is of no process")
    if header["trace"] is not None and None in map(header["trace"].get, TRACE):
        raise ValueError("it does not say what was read of a trace")


def _part(trace: Trace, events: Events, track: Track, without: frozenset[str] = frozenset()) -> Spans:
    numbers = {name: number for name, number in SPAN_ID.items() if name not in without}
    spans = np.array([numbers.get(label, -1) if isinstance(label, str) else -1 for label in trace.labels] or [-1])
    lanes = np.array([label if isinstance(label, int) else -1 for label in trace.labels] or [-1])
    events = events.only(spans[events.name] >= 0)
    lane = lanes[events.thread]
    size = len(events)
    return Spans(
        spans[events.name].astype(np.int16),
        np.full(size, track, dtype=np.int8),
        lane.astype(np.int16),
        events.cycle,
        events.start,
        events.end,
    )


def _cycles(steps: list[dict[str, Any]]) -> Cycles:
    def column(key: str) -> Ints:
        return np.array([int(step[key]) for step in steps], dtype=np.int64)

    def positions(key: str) -> Any:
        return np.array([step[key] for step in steps], dtype=np.int32).reshape(len(steps), -1)

    return Cycles(
        step=column("step"),
        start=column("start"),
        end=column("end"),
        period=column("period_ns"),
        batch=column("batch").astype(np.int32),
        scheduled_tokens=column("scheduled_tokens").astype(np.int32),
        drafting=column("drafting").astype(np.int32),
        drafted=positions("drafted"),
        accepted=positions("accepted"),
        graph_mode=np.array([GraphMode[str(step["graph_mode"])] for step in steps], dtype=np.int8),
        kind=np.array([Kind[str(step["kind"])] for step in steps], dtype=np.int8),
        detail=column("detail").astype(bool),
    )
