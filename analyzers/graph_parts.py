"""Whether the parts of a CUDA graph add up to it, and what the marks between them cost a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzers.per_cycle import STEADY, Floats, PerCycle, measure
from spantrace.recording import Recording
from spantrace.spans import GRAPH_PARTS, PARENT, SPAN_ID, Kind, Track


@dataclass(frozen=True)
class GraphSum:
    """The graphs of one span, of the `cycles` whose graph had marks.

    `parts_ms` is the median sum of the parts; `whole_ms` that of the graph by an event pair around its launch, less
    `launch_us` from the first of these events to the graph's first mark; both without what marks read. `residual` is
    the median part of the whole that is in no part. `cost_us` is by how much longer the graph takes with its `marks`,
    by this recording's own cycles, `start_cost_us` by replays in turns when it was captured; None where not known.
    """

    span: str
    cycles: int
    marks: int
    parts_ms: float
    whole_ms: float
    launch_us: float
    residual: float
    cost_us: float | None
    start_cost_us: float | None

    @property
    def cost_share(self) -> float | None:
        """What the marks cost, as a part of the graph: by replays in turns where there were any."""
        cost = self.cost_us if self.start_cost_us is None else self.start_cost_us
        return None if cost is None else cost / 1e3 / self.whole_ms


@dataclass(frozen=True)
class GraphParts:
    """`sums` by span; `missing` says of each part that is not timed why; `empty_ns` is what a pair of marks reads."""

    sums: tuple[GraphSum, ...]
    missing: dict[str, str]
    empty_ns: float


def graph_parts(recording: Recording, kinds: frozenset[Kind] = STEADY) -> GraphParts | None:
    """Sum the parts of the cycles of `kinds`; None where nobody asked for graphs with marks."""
    told = [about["graph_spans"] for about in recording.header.get("processes") or [] if about.get("graph_spans")]
    if not told:
        return None
    cycle, first = measure(recording, kinds), told[0]
    empty_ns = float(first.get("empty_ns") or 0.0)
    spans: Mapping[str, Any] = first.get("spans") or {}
    sums = (_sum(cycle, _launch(recording, span)[cycle.chosen], span, one, empty_ns) for span, one in spans.items())
    missing = {str(name): str(why) for name, why in (first.get("missing") or {}).items()}
    return GraphParts(tuple(one for one in sums if one is not None), missing, empty_ns)


def _launch(recording: Recording, span: str) -> Floats:
    """From the beginning of each cycle's GPU span to that of its first part, ns [cycles]; NaN without either."""
    spans, gpu = recording.spans, recording.spans.track == Track.GPU
    ids = [SPAN_ID[name] for name in GRAPH_PARTS if PARENT[name] == span]
    first = np.full((2, len(recording.cycles)), np.inf)
    for row, at in enumerate((gpu & (spans.name == SPAN_ID[span]), gpu & np.isin(spans.name, ids))):
        np.minimum.at(first[row], spans.cycle[at], spans.start[at])
    first[np.isinf(first)] = np.nan
    launch: Floats = first[1] - first[0]
    return launch


def _sum(cycle: PerCycle, launch: Floats, span: str, told: Mapping[str, Any], empty_ns: float) -> GraphSum | None:
    names = [name for name in GRAPH_PARTS if PARENT[name] == span]
    parts = np.stack([cycle.of(name, Track.GPU) for name in names])
    whole, once = cycle.of(span, Track.GPU), cycle.calls[SPAN_ID[span], Track.GPU] == 1
    marked = ~np.isnan(parts).all(axis=0) & once & (whole > 0)
    if not marked.any():
        return None
    marks = int(told.get("marks") or 0)
    net = whole[marked] - launch[marked] - (marks - 1) * empty_ns
    summed = np.nansum(parts[:, marked], axis=0)
    plain = whole[once & ~marked & ~np.isnan(whole)]
    at_start = None
    if told.get("plain_ms") and told.get("marked_ms"):
        at_start = (float(told["marked_ms"]) - float(told["plain_ms"])) * 1e3
    return GraphSum(
        span,
        int(marked.sum()),
        marks,
        float(np.median(summed)) / 1e6,
        float(np.median(net)) / 1e6,
        float(np.median(launch[marked])) / 1e3,
        float(np.median(1 - summed / net)),
        _less(whole[marked], plain),
        at_start,
    )


def _less(marked: Floats, plain: Floats) -> float | None:
    return float(np.median(marked) - np.median(plain)) / 1e3 if len(plain) else None
