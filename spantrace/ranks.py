"""The ranks of a recording: the workers that run the same steps together, each with its own spans of every cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spantrace.errors import SpantraceError
from spantrace.recording import Recording
from spantrace.spans import OVERLAID, SPAN_ID, SPAN_NAMES, Kind, Track
from spantrace.switched import KEY

FORWARD = SPAN_ID["target.forward"]


def ranks(header: Mapping[str, Any]) -> dict[int, int]:
    """By rank, the process in the header whose spans are its own; empty where the recording names no rank."""
    processes = header.get("processes") or []
    numbers = sorted({int(lane["process"]) for lane in header.get("lanes") or []})
    found = {processes[number].get("rank"): number for number in numbers if number < len(processes)}
    return {rank: found[rank] for rank in sorted(rank for rank in found if isinstance(rank, int))}


def counts_by_rank(header: Mapping[str, Any]) -> dict[str, dict[int, Mapping[str, Any]]]:
    """By optimization, what each rank that it was on counted of it, as `spantrace.switched` keeps it."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for rank, number in ranks(header).items():
        for one in header["processes"][number].get(KEY) or []:
            found.setdefault(str(one.get("id")), {})[rank] = one
    return found


def of_rank(recording: Recording, rank: int, *, alone: bool = False) -> Recording:
    """The recording with this rank's spans and, unless it is to be `alone`, the engine's; the header is the rank's.

    One that names no ranks is rank 0. SpantraceError where there is no such rank.
    """
    known = ranks(recording.header)
    if rank not in (known or {0}):
        there = ", ".join(map(str, known or {0}))
        raise SpantraceError(f"the recording has no rank {rank}, only rank{'s' * (len(known) > 1)} {there}")
    if len(known) < 2:
        return recording
    process = [int(lane["process"]) for lane in recording.header["lanes"]]
    wanted = [number == known[rank] or (number not in known.values() and not alone) for number in process]
    kept = np.isin(recording.spans.lane, np.flatnonzero(wanted))
    gpu = recording.header["processes"][known[rank]].get("gpu") or recording.header.get("gpu")
    header = {**recording.header, "gpu": gpu, "rank": rank}
    return replace(recording.with_spans(kept), header=header)


def end_together(recording: Recording) -> bool:
    """Whether a step's target.forward ends on all ranks at once: with its last all-reduce, less than 10 us apart.

    So it does unless the model's layers are dealt out in a pipeline. Each GPU's clock is known less well than that.
    """
    return (recording.header.get("server") or {}).get("pipeline_parallel") in (None, 1)


def of_chosen(recording: Recording, rank: int | None = None) -> Recording:
    """The recording as `of_rank` gives it for a rank, by default the slowest; itself where it has not several."""
    if rank is None and len(ranks(recording.header)) < 2:
        return recording
    return of_rank(recording, slowest(recording) if rank is None else rank)


def slowest(recording: Recording) -> int:
    """The rank that the others wait for, of at least one, by the steady cycles, or by all where none is steady.

    Where communication was recorded, it is the one that in the median cycle spends the least time there; else it is the
    one that begins target.forward last by the most, again in the median, on the GPU where that was timed, and there by
    its end where all ranks `end_together`. What happens inside a CUDA graph shows in neither.
    """
    steady = recording.of_kind(Kind.STEADY)
    among = steady if len(steady.cycles) else recording
    each = {rank: of_rank(among, rank, alone=True) for rank in ranks(recording.header)}
    spent = {rank: _communication(one) for rank, one in each.items()}
    if any(spent.values()):
        return min(spent, key=lambda rank: spent[rank])
    begun = np.stack([_forwards(one) for one in each.values()])
    begun = begun[:, ~np.isnan(begun).any(axis=0)]
    late = np.median(begun - begun.min(axis=0), axis=1) if begun.size else np.zeros(len(each))
    return list(each)[int(np.argmax(late))]


def _communication(recording: Recording) -> float:
    """Nanoseconds that the median cycle spends there, 0 where it was not recorded."""
    spans = recording.spans
    at = np.isin(spans.name, [SPAN_ID[name] for name in OVERLAID])
    spent = np.bincount(spans.cycle[at], weights=(spans.end - spans.start)[at])
    return float(np.median(spent[spent > 0])) if at.any() else 0.0


def edges(recording: Recording) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When each span first begins and last ends in each cycle, ns [names, 2, cycles], NaN where it is not in it.

    From the recording's start, on the GPU from the end of the cycle's target.forward where the ranks end it together.
    """
    spans, shape = recording.spans, (len(SPAN_NAMES), 2, len(recording.cycles))
    origin = int(recording.cycles.start[0]) if len(recording.cycles) else 0
    begin, end = np.full(shape, np.inf), np.full(shape, -np.inf)
    at = (spans.name, spans.track, spans.cycle)
    np.minimum.at(begin, at, (spans.start - origin).astype(np.float64))
    np.maximum.at(end, at, (spans.end - origin).astype(np.float64))
    begin, end = (np.where(np.isinf(side), np.nan, side) for side in (begin, end))
    if end_together(recording):
        since = end[FORWARD, Track.GPU].copy()
        begin[:, Track.GPU] -= since
        end[:, Track.GPU] -= since
    return begin, end


def _forwards(recording: Recording) -> NDArray[np.float64]:
    """When each cycle's target.forward began, as `edges` has it, on the GPU where it was timed there [cycles]."""
    begin, _ = edges(recording)
    on_gpu: NDArray[np.float64] = begin[FORWARD, Track.GPU]
    on_host: NDArray[np.float64] = begin[FORWARD, Track.HOST]
    return on_host if np.isnan(on_gpu).all() else on_gpu
