"""Recordings made in memory: realistic cycles drawn from stock figures, and tiny ones written row by row."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spantrace.recording import SCHEMA, Cycles, Recording, Spans
from spantrace.spans import SPAN_ID, GraphMode, Kind, Track

Work = dict[str, float]
Ints = NDArray[np.int64]

NEMOTRON_HOST: Work = {
    "schedule": 0.26,
    "target.input_prep": 0.90,
    "target.metadata": 2.75,
    "target.metadata.attention": 0.95,
    "target.metadata.mamba": 0.348,
    "target.forward": 0.04,
    "sample": 1.13,
    "draft.propose": 0.48,
    "draft.input_prep": 0.15,
    "draft.forward": 0.04,
    "postprocess": 0.95,
    "output.update": 0.42,
}
NEMOTRON_GPU: Work = {"target.forward": 4.281, "sample": 0.230, "draft.input_prep": 0.066, "draft.forward": 0.689}
QWEN3_HOST: Work = {
    "schedule": 0.164,
    "target.input_prep": 0.625,
    "target.metadata": 0.953,
    "target.metadata.attention": 0.9,
    "target.forward": 0.72,
    "sample": 0.909,
    "draft.propose": 0.394,
    "draft.input_prep": 0.116,
    "draft.forward": 0.04,
    "postprocess": 0.55,
    "output.update": 0.26,
}
QWEN3_GPU: Work = {"target.forward": 5.175, "sample": 0.350, "draft.input_prep": 0.066, "draft.forward": 1.079}
CALLS = {"target.metadata.mamba": 5}
LAUNCHES = ("target.forward", "sample", "draft.input_prep", "draft.forward")
CHILDREN = {
    "target.metadata": ("target.metadata.mamba", "target.metadata.attention"),
    "draft.propose": ("draft.input_prep", "draft.forward"),
}
HEADER: dict[str, Any] = {
    "schema": SCHEMA,
    "created": "2026-11-29T12:53:07+00:00",
    "spantrace": "0.1.0",
    "monotonic_to_realtime_ns": 0,
    "host": {"name": "h200", "cpu": "Xeon 8480", "cores": 16, "python": "3.12.3"},
    "gpu": {
        "name": "NVIDIA H200",
        "driver": "580.1",
        "sm_mhz": 1980,
        "memory_mhz": 3201,
        "other_processes": [],
        "torch": "2.11.0",
    },
    "server": {
        "model": "nvidia/nemotron-h-30b-a3b",
        "drafter": "dflash-nemotron",
        "method": "dflash",
        "num_speculative_tokens": 2,
        "vllm": "0.33.0",
        "runner": "V2",
        "async_scheduling": True,
        "url": "http://localhost:8000",
    },
    "optimizations": [],
    "processes": [{"pid": 1, "role": "EngineCore", "title": "", "lost": 0, "hook_errors": 0, "missing": []}],
    "lanes": [{"process": 0, "thread": "MainThread"}],
    "calibration": {"host_span_ns": 200.0, "gpu_event_ns": 1000.0, "gpu_events_per_cycle": 8},
    "options": {},
    "left_out": {},
    "notes": [],
}


def header(**parts: Any) -> dict[str, Any]:
    """A header whose dict-valued parts are updated and whose other parts are replaced by `parts`."""
    made = copy.deepcopy(HEADER)
    for key, value in parts.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) and isinstance(made.get(key), dict) else value
    return made


def cycles_of(
    bounds: Sequence[tuple[int, int]],
    *,
    kind: Sequence[Kind] | None = None,
    batch: int | Sequence[int] = 1,
    drafting: int | Sequence[int] = 0,
    drafted: Any = None,
    accepted: Any = None,
    last_period: int = -1,
    graph: GraphMode = GraphMode.FULL,
    detail: bool | Sequence[bool] = True,
) -> Cycles:
    """Cycles with these (start, end) in ns; each period runs to the next start, the last is `last_period`."""
    n = len(bounds)
    start, end = (np.array([pair[side] for pair in bounds], dtype=np.int64) for side in (0, 1))
    none = np.zeros((n, 0), dtype=np.int32)
    return Cycles(
        step=np.arange(n),
        start=start,
        end=end,
        period=np.append(np.diff(start), last_period).astype(np.int64),
        batch=np.broadcast_to(np.int32(batch), n).copy(),
        scheduled_tokens=np.ones(n, dtype=np.int32),
        drafting=np.broadcast_to(np.int32(drafting), n).copy(),
        drafted=none if drafted is None else np.broadcast_to(np.int32(drafted), (n, len(np.atleast_2d(drafted)[0]))),
        accepted=none
        if accepted is None
        else np.broadcast_to(np.int32(accepted), (n, len(np.atleast_2d(accepted)[0]))),
        graph_mode=np.full(n, graph, dtype=np.int8),
        kind=np.zeros(n, dtype=np.int8) if kind is None else np.array(kind, dtype=np.int8),
        detail=np.broadcast_to(np.bool_(detail), n).copy(),
    )


def spans_of(rows: Iterable[tuple[str, Track, int, int, int] | tuple[str, Track, int, int, int, int]]) -> Spans:
    """Spans from (name, track, cycle, start ns, end ns[, lane])."""
    table = np.array([[SPAN_ID[row[0]], *row[1:], *([0] if len(row) == 5 else [])] for row in rows] or np.zeros((0, 6)))
    name, track, cycle, start, end, lane = table.astype(np.int64).T
    return Spans(name.astype(np.int16), track.astype(np.int8), lane.astype(np.int16), cycle, start, end)


def make_recording(
    work: Work = NEMOTRON_HOST,
    kernels: Work | None = NEMOTRON_GPU,
    *,
    cycles: int = 400,
    noise: float = 0.03,
    seed: int = 0,
    drafts: int = 2,
    accepted: Sequence[int] | None = None,
    gap_ms: float = 0.01,
    unattributed_ms: float = 0.23,
    partial: bool = False,
    slowness: Any = 1.0,
    **header_parts: Any,
) -> Recording:
    """Draw cycles of a server with async scheduling: the host waits for the GPU work of the cycle before.

    The GPU works through its launches in order, so whoever has more work bounds the period. All host work takes
    `slowness` times as long, a number or one per cycle.
    """
    random = np.random.default_rng(seed)
    durations = {
        name: (drawn * slowness).astype(np.int64) for name, drawn in _draw(work, cycles, noise, random).items()
    }
    busy_host = sum(durations[name] for name in _top(work))
    gpu_durations = _draw(kernels or {}, cycles, noise / 6, random)
    launched = np.cumsum([durations[name] for name in _top(work)], axis=0)
    first_launch = launched[_top(work).index("target.forward")] if kernels else launched[0]
    busy = sum(gpu_durations.values()) if kernels else np.zeros(cycles, dtype=np.int64)
    start, waits, gpu_start = _pipeline(busy_host + _ns(unattributed_ms), first_launch, busy, _ns(gap_ms))
    rows = _host_rows(work, durations, start, waits, np.diff(np.append(start, start[-1] + busy_host[-1] + _ns(1))))
    for name, lengths in gpu_durations.items():
        rows.append((SPAN_ID[name], Track.GPU, np.arange(cycles), gpu_start, gpu_start + lengths))
        gpu_start = gpu_start + lengths
    took = accepted if accepted is not None else [1] * drafts
    made = cycles_of(
        list(zip(start, start + busy_host + waits + _ns(unattributed_ms), strict=True)),
        drafting=int(drafts > 0),
        drafted=[1] * drafts if drafts else None,
        accepted=list(took) if drafts else None,
        graph=GraphMode.FULL,
    )
    parts = {} if kernels else {"gpu": None}
    return Recording(header(**{**parts, **header_parts}), made, _stack(rows), partial)


def _ns(ms: float) -> int:
    return round(ms * 1e6)


def _top(host: Work) -> list[str]:
    nested = {child for children in CHILDREN.values() for child in children}
    return [name for name in host if name not in nested]


def _draw(work: Work, cycles: int, noise: float, random: np.random.Generator) -> dict[str, Ints]:
    return {name: (ms * 1e6 * np.exp(random.normal(0, noise, cycles))).astype(np.int64) for name, ms in work.items()}


def _pipeline(work: Ints, launch: Ints, busy: Ints, gap: int) -> tuple[Ints, Ints, Ints]:
    """Start of every cycle, how long it waits at its end for the GPU work before, and when its GPU work starts."""
    start, wait, gpu_start = (np.zeros(len(work), dtype=np.int64) for _ in range(3))
    now, free = 0, 0
    for index in range(len(work)):
        start[index] = now
        done_before, gpu_start[index] = free, max(free, now + launch[index])
        free = gpu_start[index] + busy[index]
        wait[index] = max(20_000, done_before - now - work[index])
        now += work[index] + wait[index] + gap
    return start, wait, gpu_start


def _host_rows(host: Work, durations: dict[str, Ints], start: Ints, waits: Ints, period: Ints) -> list[tuple[Any, ...]]:
    cycle, at, rows = np.arange(len(start)), start, []
    rows.append((SPAN_ID["cycle"], Track.HOST, cycle, start, start + np.maximum(period, 1)))
    for name in _top(host):
        rows.append((SPAN_ID[name], Track.HOST, cycle, at, at + durations[name]))
        inner = at
        for child in CHILDREN.get(name, ()):
            for _ in range(CALLS.get(child, 1) if child in host else 0):
                rows.append((SPAN_ID[child], Track.HOST, cycle, inner, inner + durations[child]))
                inner = inner + durations[child]
        at = at + durations[name]
    rows.append((SPAN_ID["output.wait"], Track.HOST, cycle, at, at + waits))
    return rows


def _stack(rows: list[tuple[Any, ...]]) -> Spans:
    lengths = [len(row[2]) for row in rows]
    name, track = (np.repeat([row[side] for row in rows], lengths) for side in (0, 1))
    cycle, start, end = (np.concatenate([row[side] for row in rows]) for side in (2, 3, 4))
    order = np.argsort(start, kind="stable")
    columns = (name.astype(np.int16), track.astype(np.int8), np.zeros(len(name), dtype=np.int16), cycle, start, end)
    return Spans(*(column[order] for column in columns))


def sampled(recording: Recording, every: int = 5, run: int = 8) -> Recording:
    """The same cycles as a recorder leaves them that had its hooks in force in one run of cycles in `every` only."""
    at = np.arange(len(recording.cycles)) // run % every == 0
    inner = at & np.append(True, at[:-1]) & np.append(at[1:], True)
    always = np.isin(recording.spans.name, [SPAN_ID[name] for name in ("cycle", "schedule", "output.update")])
    kept = at[recording.spans.cycle] | (always & (recording.spans.track == Track.HOST))
    spans = Spans(**{name: column[kept] for name, column in vars(recording.spans).items()})
    graphs = np.where(at, recording.cycles.graph_mode, GraphMode.UNKNOWN).astype(np.int8)
    return replace(recording, spans=spans, cycles=replace(recording.cycles, detail=inner, graph_mode=graphs))
