"""The tree of spans: what each costs per cycle on the host and on the GPU, and what no span explains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.co_saturation import CoSaturation, co_saturation
from analyzers.per_cycle import STEADY, PerCycle, measure
from analyzers.statistics import Cost
from spantrace.recording import Recording
from spantrace.spans import GRAPH_PARTS, OVERLAID, PARENT, SPAN_ID, TREE, WAITS, Kind, Track

UNATTRIBUTED = "unattributed"
BETWEEN = "between cycles"
GPU_IDLE = "GPU idle"


@dataclass(frozen=True)
class SpanRow:
    """One row: a span, or what is left over. `calls` is the mean per cycle, None for what is not a span.

    `residual` is the part of a parent's host time that its children do not explain, negative where they overlap.
    """

    name: str
    depth: int
    host: Cost | None
    gpu: Cost | None
    calls: float | None
    wait: bool = False
    own_thread: bool = False
    residual: float | None = None


@dataclass(frozen=True)
class SpanTable:
    """Rows in the tree's order, of those of the `cycles` that are in detail."""

    rows: tuple[SpanRow, ...]
    cycles: int

    def row(self, name: str) -> SpanRow | None:
        """The row of one span, None if no cycle has it."""
        return next((row for row in self.rows if row.name == name), None)


def span_table(
    recording: Recording, kinds: frozenset[Kind] = STEADY, saturation: CoSaturation | None = None
) -> SpanTable:
    """Tabulate the cycles of `kinds`; `saturation` of the same cycles saves computing it again."""
    saturation = saturation or co_saturation(recording, kinds)
    if saturation is None:
        return SpanTable((), 0)
    cycle = measure(recording, kinds)
    rows = [SpanRow("cycle", 0, saturation.period, saturation.gpu, 1.0, residual=saturation.unattributed.share)]
    rows += [row for name in TREE[1:] if (row := _span_row(cycle, name)) is not None]
    rows += [
        SpanRow(UNATTRIBUTED, 1, saturation.unattributed, None, None),
        SpanRow(BETWEEN, 1, saturation.between, None, None),
    ]
    if saturation.idle is not None:
        rows.append(SpanRow(GPU_IDLE, 1, None, saturation.idle, None))
    return SpanTable(tuple(rows), int(cycle.chosen.sum()))


def depth(name: str) -> int:
    """How many spans enclose this one: 0 for the cycle."""
    above = PARENT[name]
    return 0 if above is None else 1 + depth(above)


def _span_row(cycle: PerCycle, name: str) -> SpanRow | None:
    host, gpu = (cycle.cost(name, track) for track in (Track.HOST, Track.GPU))
    if name in OVERLAID or (host is None and gpu is None):
        return None
    track = Track.HOST if host else Track.GPU
    calls = cycle.calls[SPAN_ID[name], track][cycle.known[track]]
    mean = float((calls[calls > 0] if name in GRAPH_PARTS else calls).mean())
    return SpanRow(name, depth(name), host, gpu, mean, name in WAITS, name in cycle.beside, _residual(cycle, name))


def _residual(cycle: PerCycle, name: str) -> float | None:
    whole = cycle.of(name)
    children = [child for child, above in PARENT.items() if above == name]
    parts = np.stack([cycle.of(child) for child in children] or [whole * np.nan])
    known = ~np.isnan(whole) & (whole > 0)
    if not known.any() or np.isnan(parts[:, known]).all():
        return None
    return float(np.median(1 - np.nansum(parts[:, known], axis=0) / whole[known]))
