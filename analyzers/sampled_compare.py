"""Two servers' shares of spans side by side, where one at least was sampled: difference, interval and p."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from analyzers.compare import Difference, checked_differences
from analyzers.sampled import FEWEST, FEWEST_IN_SPAN, Share, sampled_table, share
from analyzers.span_table import depth, span_table
from analyzers.statistics import SIGNIFICANT
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.recording import Recording
from spantrace.sampled import samples_of
from spantrace.spans import SPAN_NAMES

Side = dict[str, Share]


@dataclass(frozen=True)
class ShareDelta:
    """One span: its share on each side (None where it is not there, or not often enough) and b's less a's.

    The interval holds with 95%. `p` is None where a side was measured, whose share has no binomial scatter.
    """

    name: str
    depth: int
    a: Share | None
    b: Share | None
    delta: float | None
    low: float | None
    high: float | None
    p: float | None

    @property
    def shown(self) -> bool:
        """Whether the difference may not be chance."""
        if self.low is None or self.high is None:
            return False
        return not self.low <= 0 <= self.high if self.p is None else self.p < SIGNIFICANT


@dataclass(frozen=True)
class SampledComparison:
    """Rows in the tree's order; which sides were `sampled`, and their `samples` in cycles (0 of a measured one)."""

    rows: tuple[ShareDelta, ...]
    differences: tuple[Difference, ...]
    sampled: tuple[bool, bool]
    samples: tuple[int, int]


def compare_sampled(
    a: Sequence[Recording], b: Sequence[Recording], vary: Iterable[str] = (), *, force: bool = False
) -> SampledComparison | None:
    """Compare the shares of b with those of a; None where every recording is measured.

    Sampled shares beside measured ones, and configurations that differ beyond `vary`, are errors unless `force`.
    """
    kinds = [{samples_of(run.header) is not None for run in side} for side in (a, b)]
    if not any(True in kind for kind in kinds):
        return None
    if any(len(kind) > 1 for kind in kinds):
        raise SpantraceError("a side holds sampled and measured recordings; put them apart", EXIT_NOT_COMPARABLE)
    if kinds[0] != kinds[1] and not force:
        which = "A" if True in kinds[0] else "B"
        raise SpantraceError(
            f"{which} is sampled and the other side measured; record both alike, or use --force to compare shares",
            EXIT_NOT_COMPARABLE,
        )
    differing = checked_differences([*a, *b], frozenset(vary), a, b, force)
    sides = [_sampled(side) if True in kind else _measured(side) for kind, side in zip(kinds, (a, b), strict=True)]
    rows = tuple(_delta(name, sides[0].get(name), sides[1].get(name)) for name in SPAN_NAMES if _any(name, sides))
    counts = [sum(table.cycles for run in side if (table := sampled_table(run))) for side in (a, b)]
    return SampledComparison(rows, differing, (True in kinds[0], True in kinds[1]), (counts[0], counts[1]))


def _any(name: str, sides: list[Side]) -> bool:
    return name != "cycle" and any(name in side for side in sides)


def _sampled(runs: Sequence[Recording]) -> Side:
    """The shares of all runs of a side together, without the spans that were seen too rarely."""
    tables = [table for run in runs if (table := sampled_table(run)) is not None]
    found = {}
    for name in SPAN_NAMES:
        rows = [row for table in tables if (row := table.row(name)) is not None]
        samples, among = sum(row.samples for row in rows), sum(table.cycles for table in tables)
        scaled = sum(row.share.among for row in rows if row.share)
        if samples >= FEWEST_IN_SPAN and among >= FEWEST:
            found[name] = share(samples, scaled if all(row.share for row in rows) else among)
    return found


def _measured(runs: Sequence[Recording]) -> Side:
    """The mean shares of the runs, which have no interval of their own here."""
    tables = [span_table(run) for run in runs]
    if not all(table.cycles for table in tables):
        raise SpantraceError("the measured side has no steady cycles; record it longer, under load")
    found = {}
    for name in SPAN_NAMES:
        rows = [row for table in tables if (row := table.row(name)) is not None and row.host is not None]
        if rows:
            value = sum(row.host.share for row in rows if row.host) / len(tables)
            found[name] = Share(value, value, value, 0, 0.0)
    return found


def _delta(name: str, a: Share | None, b: Share | None) -> ShareDelta:
    """The difference, its interval by squaring and adding (Newcombe, Statistics in Medicine 17, 1998, method 10)."""
    if a is None or b is None:
        return ShareDelta(name, depth(name), a, b, None, None, None, None)
    delta = b.value - a.value
    low = delta - float(np.hypot(b.value - b.low, a.high - a.value))
    high = delta + float(np.hypot(b.high - b.value, a.value - a.low))
    return ShareDelta(name, depth(name), a, b, delta, low, high, _p(a, b))


def _p(a: Share, b: Share) -> float | None:
    """The two-sided test of two binomial shares by their pooled one."""
    if not a.samples or not b.samples:
        return None
    pooled = (a.samples + b.samples) / (a.among + b.among)
    error = float(np.sqrt(pooled * (1 - pooled) * (1 / a.among + 1 / b.among)))
    return float(2 * ndtr(-abs(b.value - a.value) / error)) if error else 1.0
