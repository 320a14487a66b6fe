"""Whether a recording can be believed: what it lost, what failed, what it does not explain, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.co_saturation import gpu_busy
from analyzers.per_cycle import STEADY, chosen_cycles
from analyzers.span_table import SpanTable, span_table
from spantrace.recording import Recording
from spantrace.spans import Kind, Track
from spantrace.switched import switched

COST_BUDGET = 0.015
"""Own cost above this share of the period spoils the figures."""
RESIDUAL_BUDGET = 0.10
"""A cycle with more than this in no span, and children that exceed their parent by more, are pointed out."""
FEW_CYCLES = 100
SKIPPED_BUDGET = 0.01
"""GPU spans without an event, per cycle, from which on it is said."""


@dataclass(frozen=True)
class Doubt:
    """One sentence about what to doubt; `refuse` means that the figures should not be quoted."""

    text: str
    refuse: bool = False


@dataclass(frozen=True)
class Trust:
    """`residual` is the cycle's share in no span, `residuals` that of every other parent.

    `gpu_cycles` counts the cycles whose GPU side is known, None without one.
    `own_cost_us` is microseconds of host time per cycle, `own_cost_share` its part of the period; None uncalibrated.
    """

    cycles: int
    gpu_cycles: int | None
    lost: int
    hook_errors: int
    missing: tuple[str, ...]
    partial: bool
    residual: float | None
    residuals: dict[str, float]
    host_span_ns: float | None
    gpu_event_ns: float | None
    own_cost_us: float | None
    own_cost_share: float | None
    left_out: dict[str, int]
    doubts: tuple[Doubt, ...]


def trust(recording: Recording, kinds: frozenset[Kind] = STEADY, table: SpanTable | None = None) -> Trust:
    """Check the recording; `table` saves computing it again."""
    table = table or span_table(recording, kinds)
    header, cycle = recording.header, table.row("cycle")
    processes = header.get("processes") or []
    calibration = header.get("calibration") or {}
    cost_ns = _own_cost_ns(recording, kinds)
    period = cycle.host.ms if cycle is not None and cycle.host is not None else None
    share = cost_ns / (period * 1e6) if cost_ns is not None and period else None
    parents = {row.name: row.residual for row in table.rows if row.residual is not None and row.name != "cycle"}
    lost = sum(int(process.get("lost") or 0) for process in processes)
    errors = sum(int(process.get("hook_errors") or 0) for process in processes)
    residual = None if cycle is None else cycle.residual
    busy = gpu_busy(recording, kinds)
    return Trust(
        cycles=table.cycles,
        gpu_cycles=None if busy is None else int(np.sum(~np.isnan(busy))),
        lost=lost,
        hook_errors=errors,
        missing=tuple(sorted({name for process in processes for name in process.get("missing") or []})),
        partial=recording.partial,
        residual=residual,
        residuals=parents,
        host_span_ns=calibration.get("host_span_ns"),
        gpu_event_ns=calibration.get("gpu_event_ns"),
        own_cost_us=None if cost_ns is None else cost_ns / 1e3,
        own_cost_share=share,
        left_out=left_out(recording, kinds),
        doubts=(
            *_losses(recording, lost, errors),
            *_doubts(table.cycles, share, {"cycle": residual or 0.0, **parents}),
            *_gpu_gaps(recording, kinds),
            *_surroundings(recording),
        ),
    )


def left_out(recording: Recording, kinds: frozenset[Kind] = STEADY) -> dict[str, int]:
    """How many cycles of which kind are in no statistic, those the recorder dropped included."""
    found = {
        kind.name.lower().replace("_", " "): int(np.sum(recording.cycles.kind == kind))
        for kind in Kind
        if kind not in kinds
    }
    for name, count in (recording.header.get("left_out") or {}).items():
        label = str(name).replace("_", " ")
        found[label] = found.get(label, 0) + int(count)
    return {name: count for name, count in found.items() if count}


def _own_cost_ns(recording: Recording, kinds: frozenset[Kind]) -> float | None:
    calibration = recording.header.get("calibration") or {}
    chosen = chosen_cycles(recording, kinds)
    host_ns = calibration.get("host_span_ns")
    if host_ns is None or not chosen.any():
        return None
    host = (recording.spans.track == Track.HOST) & chosen[recording.spans.cycle]
    events = float(calibration.get("gpu_events_per_cycle") or 0) * float(calibration.get("gpu_event_ns") or 0)
    return float(host_ns) * float(host.sum()) / float(chosen.sum()) + events


def _losses(recording: Recording, lost: int, errors: int) -> list[Doubt]:
    found = []
    if recording.partial:
        found.append(Doubt("the recording ends before its recorder did: it was cut off"))
    if lost:
        found.append(Doubt(f"{lost:,} rows were lost: medians may miss cycles; record fewer cycles at once", True))
    if errors:
        first = [p["first_error"] for p in recording.header.get("processes") or [] if p.get("first_error")]
        detail = f": {first[0]}" if first else ""
        found.append(Doubt(f"{errors:,} hook errors; their spans are incomplete{detail}", True))
    return found


def _doubts(cycles: int, cost_share: float | None, residuals: dict[str, float]) -> list[Doubt]:
    found = []
    if 0 < cycles < FEW_CYCLES:
        found.append(Doubt(f"only {cycles} cycles: record at least {FEW_CYCLES}"))
    if cost_share is not None and cost_share > COST_BUDGET:
        found.append(Doubt(f"recording costs {cost_share:.1%} of the cycle, more than {COST_BUDGET:.1%}", True))
    for name, residual in residuals.items():
        if name == "cycle" and residual > RESIDUAL_BUDGET:
            found.append(Doubt(f"{residual:.0%} of the cycle is in none of its spans"))
        if residual < -RESIDUAL_BUDGET:
            found.append(Doubt(f"the spans of {name} exceed it by {-residual:.0%}: they overlap or are misplaced"))
    return found


def _gpu_gaps(recording: Recording, kinds: frozenset[Kind]) -> list[Doubt]:
    """Cycles without GPU times, and spans for which there was no room for an event."""
    busy = gpu_busy(recording, kinds)
    found = []
    every = (recording.header.get("options") or {}).get("detail_every") or 1
    if busy is not None and every == 1 and (missing := int(np.isnan(busy).sum())):
        found.append(Doubt(f"GPU times of {missing:,} of {len(busy):,} cycles are missing"))
    processes = recording.header.get("processes") or []
    if busy is None and any(process.get("gpu_records") for process in processes):
        found.append(Doubt("no GPU event was read before the recording was cut off: the GPU's side is missing"))
    skipped = sum(int(process.get("gpu_skipped") or 0) for process in processes)
    if skipped > SKIPPED_BUDGET * max(1, len(recording.cycles)):
        found.append(Doubt(f"{skipped:,} GPU spans had no room for an event: their medians are of the other cycles"))
    return found


def _surroundings(recording: Recording) -> list[Doubt]:
    found = [Doubt(str(note)) for note in recording.header.get("notes") or []]
    others = (recording.header.get("gpu") or {}).get("other_processes") or []
    if others:
        found.append(Doubt(f"{len(others)} other process{'es' * (len(others) > 1)} used the GPU"))
    found += [Doubt(one.warning) for one in switched(recording.header) if one.warning]
    return found
