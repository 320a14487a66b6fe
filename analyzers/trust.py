"""Whether a recording can be believed: what it lost, what failed, what it does not explain, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.co_saturation import gpu_busy
from analyzers.per_cycle import STEADY, Mask, chosen_cycles, periods, timed_cycles
from analyzers.span_table import SpanTable, span_table
from spantrace.ranks import counts_by_rank, ranks
from spantrace.recording import Recording
from spantrace.spans import Kind, Track
from spantrace.switched import switched
from spantrace.tables import many

COST_BUDGET = 0.015
"""Own cost above this share of the period spoils the figures."""
RESIDUAL_BUDGET = 0.10
"""A cycle with more than this in no span, and children that exceed their parent by more, are pointed out."""
FEW_CYCLES = 100
FEW_IN_DETAIL = 30
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

    `detail_cycles` counts the cycles whose spans are known, `gpu_cycles` those whose GPU side is, None without one.
    `own_cost_us` is microseconds of host time per cycle in detail, `own_cost_share` its part of those cycles' period;
    `mean_cost_us` and `mean_cost_share` are of all cycles and of their median period `period_ms`; None uncalibrated.
    """

    cycles: int
    detail_cycles: int
    gpu_cycles: int | None
    period_ms: float | None
    detail_period_ms: float | None
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
    mean_cost_us: float | None
    mean_cost_share: float | None
    left_out: dict[str, int]
    doubts: tuple[Doubt, ...]


def trust(recording: Recording, kinds: frozenset[Kind] = STEADY, table: SpanTable | None = None) -> Trust:
    """Check the recording; `table` saves computing it again."""
    table = table or span_table(recording, kinds)
    header, cycle = recording.header, table.row("cycle")
    processes = header.get("processes") or []
    calibration = header.get("calibration") or {}
    chosen = chosen_cycles(recording, kinds)
    among = chosen & recording.cycles.detail
    detailed, whole = _cost(recording, among), _cost(recording, chosen)
    parents = {row.name: row.residual for row in table.rows if row.residual is not None and row.name != "cycle"}
    lost = sum(int(process.get("lost") or 0) for process in processes)
    errors = sum(int(process.get("hook_errors") or 0) for process in processes)
    residual = None if cycle is None else cycle.residual
    busy = gpu_busy(recording, kinds)
    return Trust(
        cycles=table.cycles,
        detail_cycles=int(among.sum()),
        gpu_cycles=None if busy is None else int(np.sum(~np.isnan(busy))),
        period_ms=whole.period_ms,
        detail_period_ms=detailed.period_ms,
        lost=lost,
        hook_errors=errors,
        missing=tuple(sorted({name for process in processes for name in process.get("missing") or []})),
        partial=recording.partial,
        residual=residual,
        residuals=parents,
        host_span_ns=calibration.get("host_span_ns"),
        gpu_event_ns=calibration.get("gpu_event_ns"),
        own_cost_us=detailed.us,
        own_cost_share=detailed.share,
        mean_cost_us=whole.us,
        mean_cost_share=whole.share,
        left_out=left_out(recording, kinds),
        doubts=(
            *_losses(recording, lost, errors),
            *_too_few(table.cycles, int(among.sum())),
            *_doubts(detailed.share, {"cycle": residual or 0.0, **parents}),
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


@dataclass(frozen=True)
class _Cost:
    """What recording some cycles took of each: microseconds of the host, and that as a part of their median period."""

    us: float | None
    period_ms: float | None

    @property
    def share(self) -> float | None:
        return self.us / (self.period_ms * 1e3) if self.us is not None and self.period_ms else None


def _cost(recording: Recording, chosen: Mask) -> _Cost:
    calibration, period = recording.header.get("calibration") or {}, periods(recording)[chosen]
    period_ms = float(np.median(period[period > 0])) / 1e6 if (period > 0).any() else None
    host_ns = calibration.get("host_span_ns")
    if host_ns is None or not chosen.any():
        return _Cost(None, period_ms)
    rows = (recording.spans.track == Track.HOST) & chosen[recording.spans.cycle]
    timed, detailed = timed_cycles(recording), chosen & recording.cycles.detail
    events = float(calibration.get("gpu_events_per_cycle") or 0) * float(calibration.get("gpu_event_ns") or 0)
    if timed[detailed].any():
        events *= float(timed[chosen].mean() / timed[detailed].mean())
    return _Cost((float(host_ns) * float(rows.sum()) / float(chosen.sum()) + events) / 1e3, period_ms)


def _losses(recording: Recording, lost: int, errors: int) -> list[Doubt]:
    found = []
    if recording.partial:
        found.append(Doubt("the recording is partial: it was cut off, or a process left it"))
    if lost:
        found.append(Doubt(f"{lost:,} rows were lost: medians may miss cycles; record fewer cycles at once", True))
    if errors:
        first = [p["first_error"] for p in recording.header.get("processes") or [] if p.get("first_error")]
        detail = f": {first[0]}" if first else ""
        found.append(Doubt(f"{errors:,} hook errors; their spans are incomplete{detail}", True))
    return found


def _too_few(cycles: int, detailed: int) -> list[Doubt]:
    if 0 < cycles < FEW_CYCLES:
        return [Doubt(f"only {cycles} cycles: record at least {FEW_CYCLES}")]
    if detailed < min(cycles, FEW_IN_DETAIL):
        return [Doubt(f"spans are known in {detailed} cycles only: record more cycles, or --detail-every 1")]
    return []


def _doubts(cost_share: float | None, residuals: dict[str, float]) -> list[Doubt]:
    found = []
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
    if busy is not None and (missing := int(np.isnan(busy).sum())):
        found.append(Doubt(f"GPU times of {missing:,} of {len(busy):,} cycles{_in_detail(recording)} are missing"))
    processes = recording.header.get("processes") or []
    if busy is None and any(process.get("gpu_records") for process in processes):
        found.append(Doubt("no GPU event was read before the recording was cut off: the GPU's side is missing"))
    skipped = sum(int(process.get("gpu_skipped") or 0) for process in processes)
    if skipped > SKIPPED_BUDGET * max(1, len(recording.cycles)):
        found.append(Doubt(f"{skipped:,} GPU spans had no room for an event: their medians are of the other cycles"))
    return found


def _in_detail(recording: Recording) -> str:
    return "" if recording.cycles.detail.all() else " in detail"


def _surroundings(recording: Recording) -> list[Doubt]:
    found = [Doubt(str(note)) for note in recording.header.get("notes") or []]
    others = (recording.header.get("gpu") or {}).get("other_processes") or []
    if others:
        found.append(Doubt(f"{many(len(others), 'other process', 'other processes')} used the GPU"))
    found += [Doubt(one.warning) for one in switched(recording.header) if one.warning]
    everywhere = set(ranks(recording.header))
    for name, counted in counts_by_rank(recording.header).items():
        if missing := ", ".join(map(str, sorted(everywhere - set(counted)))):
            found.append(Doubt(f"{name} was not on on rank {missing}: restart the server, its log says why", True))
    return found
