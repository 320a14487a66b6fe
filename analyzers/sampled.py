"""The shares of a sampled recording's spans in the time of its cycles, with binomial intervals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scipy.special import betaincinv

from analyzers.span_table import UNATTRIBUTED, depth
from analyzers.statistics import CONFIDENCE
from spantrace.recording import Recording
from spantrace.sampled import Samples, Seen, samples_of
from spantrace.spans import SPAN_NAMES, WAITS

FEWEST, FEWEST_IN_SPAN = 100, 10
"""Samples in cycles, and in a span, below which there are not enough for a share."""


@dataclass(frozen=True)
class Share:
    """A share of the time in cycles with its 95% interval, of `samples` of `among`."""

    value: float
    low: float
    high: float
    samples: int
    among: float


@dataclass(frozen=True)
class SampledRow:
    """A span, how often it was seen, its share (None: not enough) and its functions, the commonest first."""

    name: str
    depth: int
    samples: int
    share: Share | None
    functions: tuple[str, ...]
    wait: bool
    own_thread: bool


@dataclass(frozen=True)
class SampledTable:
    """Rows in the tree's order; `cycles` and `idle` count the engine's samples inside and outside of cycles."""

    rows: tuple[SampledRow, ...]
    cycles: int
    idle: int

    @property
    def enough(self) -> bool:
        """Whether there are enough samples in cycles for shares."""
        return self.cycles >= FEWEST

    def row(self, name: str) -> SampledRow | None:
        """The row of one span, None if it was never seen."""
        return next((row for row in self.rows if row.name == name), None)


def sampled_table(recording: Recording) -> SampledTable | None:
    """Tabulate a sampled recording; None where it is a measured one.

    Every process is looked at on its own, so that a span of a worker is counted against as many of the worker's
    samples as the engine's time in cycles stands for.
    """
    found = samples_of(recording.header)
    if found is None:
        return None
    looks = Counter[int]()
    for seen in found.seen:
        if seen.main:
            looks[seen.process] += seen.samples
    inside = sum(seen.samples for seen in found.seen if _in_cycle(seen))
    scale = {process: looks[process] / looks[0] for process in looks} if looks[0] else {}
    rows = [row for name in SPAN_NAMES if (row := _row(found, name, inside, scale)) is not None]
    rest = sum(seen.samples for seen in found.seen if _in_cycle(seen) and len(seen.spans) == 1)
    if rest and not any(process for process in looks):
        rows.append(SampledRow(UNATTRIBUTED, 1, rest, _enough(rest, inside), (), False, False))
    return SampledTable(tuple(rows), inside, looks[0] - inside)


def share(samples: int, among: float) -> Share:
    """A binomial share with its interval (Clopper and Pearson, Biometrika 26, 1934)."""
    tail, among = (1 - CONFIDENCE) / 2, max(among, samples)
    low = float(betaincinv(samples, among - samples + 1, tail)) if samples else 0.0
    high = float(betaincinv(samples + 1, among - samples, 1 - tail)) if samples < among else 1.0
    return Share(samples / among if among else 0.0, low, high, samples, among)


def _in_cycle(seen: Seen) -> bool:
    return seen.process == 0 and seen.main and "cycle" in seen.spans


def _row(found: Samples, name: str, inside: int, scale: dict[int, float]) -> SampledRow | None:
    """A span by the process that was seen in it the most: the engine's, or one worker's."""
    by_process, functions, threads = Counter[int](), Counter[str](), Counter[bool]()
    for seen in (one for one in found.seen if name in one.spans):
        by_process[seen.process] += seen.samples
        functions[seen.spans[name]] += seen.samples
        threads[seen.main] += seen.samples
    if not by_process:
        return None
    process, samples = by_process.most_common(1)[0]
    among = inside * scale.get(process, 1.0)
    names = tuple(function for function, _ in functions.most_common())
    return SampledRow(
        name, depth(name), samples, _enough(samples, among), names, name in WAITS, threads[False] > threads[True]
    )


def _enough(samples: int, among: float) -> Share | None:
    return share(samples, among) if samples >= FEWEST_IN_SPAN and among >= FEWEST else None
