"""How the ranks of a recording keep pace: what each span takes on every rank, who is last, and who is waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.per_cycle import STEADY, Floats, PerCycle, measure
from analyzers.span_table import depth
from analyzers.statistics import present
from spantrace.ranks import FORWARD, edges, end_together, of_rank, ranks, slowest
from spantrace.recording import Recording
from spantrace.spans import GRAPH_PARTS, OVERLAID, PARENT, SPAN_ID, SPAN_NAMES, TREE, WAITS, GraphMode, Kind, Track

COMMUNICATION = "communication"
EVEN = 0.01
"""Below this share of the period the ranks are called even."""
Milliseconds = tuple[float | None, ...]


@dataclass(frozen=True)
class RankRow:
    """One span: its median ms per cycle on each rank's host and GPU, `communication` being a part of the host's.

    `first_skew` and `last_skew` are the median ms between the first and the last rank to begin and to end it in a
    cycle, on the GPU where all ranks have it there, and then by the end of target.forward where they end it together;
    `p90_skew` the 90th percentile of the latter. `critical` is the rank that ends it last most often, in
    `critical_share` of the cycles.
    """

    name: str
    depth: int
    host: Milliseconds
    gpu: Milliseconds
    communication: Milliseconds
    first_skew: float | None
    last_skew: float | None
    p90_skew: float | None
    critical: int | None
    critical_share: float | None


@dataclass(frozen=True)
class Ranks:
    """Every rank of a recording side by side; tuples have one value per rank, in order of `ranks`.

    `period` is the cycles' mean, in ms.
    `slowest` is the one that the others wait for, `behind` the ms of a cycle that they wait: that the rank which waits
    longest spends more in communication, or, where that is not known, that it begins target.forward earlier.
    `longest` is the span in which the slowest one itself takes the most ms more than the others, `longer`.
    `communication` is the median ms of a cycle in it, `communication_share` its mean part of the period.
    `end_together` says that the end of target.forward has set the GPUs' clocks.
    """

    ranks: tuple[int, ...]
    period: float
    slowest: int
    behind: float | None
    behind_share: float | None
    longest: str | None
    longer: float | None
    communication: Milliseconds
    communication_share: Milliseconds
    communication_calls: float | None
    in_graphs: bool
    end_together: bool
    rows: tuple[RankRow, ...]

    @property
    def even(self) -> bool:
        """Whether no rank is slower than the others to speak of."""
        return self.behind_share is None or self.behind_share < EVEN

    def tells(self, skew: float) -> bool:
        """Whether so many ms between the first and the last rank are worth naming the last one."""
        return skew >= EVEN * self.period


@dataclass(frozen=True)
class _Measured:
    """The same chosen cycles of every rank: sums per span, and when each first begins and last ends, [names, 2, n]."""

    sums: tuple[PerCycle, ...]
    begins: tuple[Floats, ...]
    ends: tuple[Floats, ...]
    own: tuple[Floats, ...]


def rank_skew(recording: Recording, kinds: frozenset[Kind] = STEADY) -> Ranks | None:
    """Set the ranks of a recording side by side; None where it has fewer than two."""
    known = tuple(ranks(recording.header))
    if len(known) < 2:
        return None
    measured = _measure([of_rank(recording, rank, alone=True) for rank in known], kinds)
    slow = slowest(recording)
    behind = _behind(measured, known.index(slow))
    period = float(np.nanmean(measured.sums[0].period)) / 1e6
    spent = [one.of(COMMUNICATION) for one in measured.sums]
    longest, longer = _longest(measured, known.index(slow))
    calls = measured.sums[0].calls[SPAN_ID[COMMUNICATION], Track.HOST]
    modes = recording.cycles.graph_mode[measured.sums[0].chosen]
    together = end_together(recording)
    return Ranks(
        ranks=known,
        period=period,
        slowest=slow,
        behind=behind,
        behind_share=None if behind is None else behind / period,
        longest=longest,
        longer=longer,
        communication=tuple(_median(one) for one in spent),
        communication_share=tuple(_share(one, measured.sums[0].period) for one in spent),
        communication_calls=float(calls[measured.sums[0].known[Track.HOST]].mean()) if calls.any() else None,
        in_graphs=bool(np.isin(modes, [GraphMode.FULL, GraphMode.PIECEWISE]).any()),
        end_together=together,
        rows=tuple(row for name in TREE if (row := _row(measured, known, name, together)) is not None),
    )


def _measure(each: list[Recording], kinds: frozenset[Kind]) -> _Measured:
    sums = tuple(measure(one, kinds) for one in each)
    sides = [edges(one) for one in each]
    chosen, detail = sums[0].chosen, each[0].cycles.detail[sums[0].chosen]
    begins, ends = (tuple(np.where(detail, one[side][:, :, chosen], np.nan) for one in sides) for side in (0, 1))
    return _Measured(sums, begins, ends, tuple(_own_communication(one)[:, chosen] for one in each))


def _own_communication(recording: Recording) -> Floats:
    """Host time of communication that lies in each span, ns [names, cycles]: in rows of the same lane."""
    spans, found = recording.spans, np.zeros((len(SPAN_NAMES), len(recording.cycles)))
    inner = (spans.name == SPAN_ID[COMMUNICATION]) & (spans.track == Track.HOST)
    for lane in np.unique(spans.lane[inner]).tolist():
        said = np.flatnonzero(inner & (spans.lane == lane))
        for name in np.unique(spans.name[(spans.lane == lane) & ~inner]).tolist():
            rows = np.flatnonzero((spans.lane == lane) & (spans.name == name) & (spans.track == Track.HOST))
            if not len(rows):
                continue
            last = np.searchsorted(spans.start[rows], spans.start[said], side="right") - 1
            inside = (last >= 0) & (spans.end[said] <= spans.end[rows[np.maximum(last, 0)]])
            length = (spans.end - spans.start)[said[inside]].astype(np.float64)
            found[name] += np.bincount(spans.cycle[said[inside]], weights=length, minlength=found.shape[1])
    return found


def _behind(measured: _Measured, slow: int) -> float | None:
    """The median ms by which the one that waits longest waits more than the slowest rank."""
    spent = np.stack([one.of(COMMUNICATION) for one in measured.sums])
    if not np.isnan(spent).all():
        return _median(np.nanmax(np.where(np.isnan(spent), -np.inf, spent), axis=0) - spent[slow])
    for track in (Track.GPU, Track.HOST):
        begins = np.stack([one[FORWARD, track] for one in measured.begins])
        known = ~np.isnan(begins).any(axis=0)
        if known.any():
            return _median(begins[slow, known] - begins[:, known].min(axis=0))
    return None


def _longest(measured: _Measured, slow: int) -> tuple[str | None, float | None]:
    """The span without parts, waits aside, in which a rank's own host time exceeds the others' mean the most, in ms."""
    apart = {PARENT[name] for name in SPAN_NAMES if name not in GRAPH_PARTS} | WAITS | OVERLAID | GRAPH_PARTS
    more: dict[str, float] = {}
    for name in (name for name in SPAN_NAMES if name not in apart):
        own = [one.of(name) - inside[SPAN_ID[name]] for one, inside in zip(measured.sums, measured.own, strict=True)]
        medians = [_median(values) for values in own]
        others = [value for rank, value in enumerate(medians) if rank != slow and value is not None]
        if others and (its := medians[slow]) is not None:
            more[name] = its - float(np.mean(others))
    longest = max(more, key=lambda name: more[name], default=None)
    return (longest, more[longest]) if longest is not None and more[longest] > 0 else (None, None)


def _row(measured: _Measured, known: tuple[int, ...], name: str, together: bool) -> RankRow | None:
    """A span's row; None where not two ranks have it."""
    number = SPAN_ID[name]
    host, gpu = (tuple(_median(one.of(name, track)) for one in measured.sums) for track in (Track.HOST, Track.GPU))
    if max(sum(value is not None for value in side) for side in (host, gpu)) < 2:
        return None
    timed = np.stack([one[number, Track.GPU] for one in measured.ends])
    track = Track.GPU if (~np.isnan(timed).any(axis=0)).any() else Track.HOST
    begins, ends = (np.stack([one[number, track] for one in side]) for side in (measured.begins, measured.ends))
    whole = ~np.isnan(ends).any(axis=0)
    skew = np.ptp(ends[:, whole], axis=0)
    last = np.bincount(ends[:, whole].argmax(axis=0), minlength=len(known)) if whole.any() else None
    apart = name in OVERLAID or last is None
    ended = None if apart or (together and number == FORWARD and track is Track.GPU) else last
    parts = tuple(
        _median(np.where(np.isnan(one.of(name)), np.nan, inside[number]))
        for one, inside in zip(measured.sums, measured.own, strict=True)
    )
    return RankRow(
        name=name,
        depth=depth(name),
        host=host,
        gpu=gpu,
        communication=parts if any(parts) else (None,) * len(known),
        first_skew=None if apart else _median(np.ptp(begins[:, whole], axis=0)),
        last_skew=None if ended is None else _median(skew),
        p90_skew=None if ended is None else float(np.quantile(skew, 0.9)) / 1e6,
        critical=None if ended is None else known[int(ended.argmax())],
        critical_share=None if ended is None else float(ended.max() / ended.sum()),
    )


def _share(values: Floats, period: Floats) -> float | None:
    """The part of the periods of the cycles that have a value, which the values are in all."""
    known = ~np.isnan(values) & ~np.isnan(period)
    return float(values[known].sum() / period[known].sum()) if known.any() else None


def _median(values: Floats) -> float | None:
    """The median in ms of nanoseconds, None where all are NaN."""
    known = present(values)
    return float(np.median(known)) / 1e6 if len(known) else None
