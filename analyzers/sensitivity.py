"""By how much the cycle gets longer where a span is held up: 1 is on the critical path, 0 is hidden behind something.

From windows that alternate with and without a delay (spantrace.experiment). A block is one pair of windows of one
span: the difference of the median periods, by the time that was injected a cycle, is one slope. Blocks are the samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from scipy.special import stdtrit

from analyzers.per_cycle import Floats
from analyzers.statistics import CONFIDENCE, FEWEST_RUNS, Estimate
from spantrace.recording import Recording
from spantrace.spans import Kind
from spantrace.windows import WINDOWS

SETTLE = 2
"""Cycles at the start of a window that may still be under the last one's influence."""
FEWEST_CYCLES = 10
"""Cycles without which a window has no median worth anything."""
NEAR = 0.1
"""An interval that comes this near to 1 or to 0 is counted as reaching it."""
FAR = 0.2
"""An interval that goes further from 1 or from 0 than this, towards the other, holds slopes that are partly hidden."""


class Path(Enum):
    """Where a span lies in the cycle."""

    CRITICAL = "critical path"
    """The cycle gets longer by about as much as the span does, or by more: a delay leaves caches cold."""
    PARTLY = "partly hidden"
    HIDDEN = "hidden"
    """The cycle does not get longer."""
    UNCLEAR = "unclear"
    """The interval holds more than one of these."""
    NOT_ENOUGH = "not enough blocks"
    NOT_ENTERED = "never entered"

    @property
    def told(self) -> bool:
        """Whether the blocks show where the span lies."""
        return self in (Path.CRITICAL, Path.PARTLY, Path.HIDDEN)


@dataclass(frozen=True)
class Sensitivity:
    """d(cycle)/d(delay) of one span on one track, with the time in us by which it was held up a cycle on average.

    `slope` is None where there are too few blocks, or nothing was held up; `refused` are delays that a limit forbade.
    """

    span: str
    track: str
    delay_us: float
    slope: Estimate | None
    blocks: int
    path: Path
    refused: int = 0


def sensitivity(recording: Recording) -> tuple[Sensitivity, ...]:
    """One result for each span that was held up, in the order in which they first were; empty where none was."""
    windows = recording.header.get(WINDOWS) or []
    aims = dict.fromkeys((str(one["span"]), str(one["track"])) for one in windows)
    return tuple(_of(recording, span, track, windows) for span, track in aims)


def _of(recording: Recording, span: str, track: str, windows: list[Mapping[str, Any]]) -> Sensitivity:
    blocks: dict[int, dict[bool, Mapping[str, Any]]] = {}
    for one in windows:
        if (one["span"], one["track"]) == (span, track):
            blocks.setdefault(int(one["block"]), {})[one["ns"] > 0] = one
    pairs = [pair for pair in blocks.values() if len(pair) == 2]
    injected = np.array([_injected(pair[True]) for pair in pairs])
    refused = sum(int(held["refused"]) for pair in pairs for held in pair[True]["held"])
    delay_us = float(injected.mean()) / 1e3 if len(injected) else 0.0
    if not delay_us:
        return Sensitivity(span, track, 0.0, None, len(pairs), Path.NOT_ENTERED, refused)
    differences = np.array([_median(recording, pair[True]) - _median(recording, pair[False]) for pair in pairs])
    known = ~np.isnan(differences) & (injected > 0)
    slopes = differences[known] / injected[known]
    slope = _mean(slopes)
    path = _path(slope) if slope else Path.NOT_ENOUGH
    return Sensitivity(span, track, delay_us, slope, len(slopes), path, refused)


def _injected(window: Mapping[str, Any]) -> float:
    """Nanoseconds by which a cycle of the window was held up on average, in the processes that did so.

    By the time that was asked for: what a delay took beyond it, the machine took, which medians leave out.
    """
    parts = [held["times"] / max(held["times"], held["cycles"] - 1) for held in window["held"] if held["times"]]
    return float(window["ns"] * np.mean(parts)) if parts else 0.0


def _median(recording: Recording, window: Mapping[str, Any]) -> float:
    """The median period in ns of the decode cycles that lie in the window; NaN where they are too few."""
    cycles = recording.cycles
    inside = (cycles.start >= window["begin_ns"]) & (cycles.start + cycles.period <= window["end_ns"])
    decoding = np.isin(cycles.kind, (Kind.STEADY, Kind.DELAYED)) & (cycles.period > 0)
    at = np.flatnonzero(inside)[SETTLE:]
    periods = cycles.period[at][decoding[at]]
    return float(np.median(periods)) if len(periods) >= FEWEST_CYCLES else np.nan


def _mean(values: Floats) -> Estimate | None:
    """The mean of the blocks' slopes with Student's interval; None where they are too few."""
    if len(values) < FEWEST_RUNS:
        return None
    middle, freedom = float(np.mean(values)), len(values) - 1
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return Estimate(middle, middle - half, middle + half, len(values))


def _path(slope: Estimate) -> Path:
    assert slope.low is not None
    assert slope.high is not None
    if slope.low >= 1 - FAR and slope.high >= 1 - NEAR:
        return Path.CRITICAL
    if slope.high <= FAR and slope.low <= NEAR:
        return Path.HIDDEN
    return Path.PARTLY if slope.low > NEAR and slope.high < 1 - NEAR else Path.UNCLEAR
