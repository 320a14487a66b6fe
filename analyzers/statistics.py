"""Medians with intervals that hold for series of cycles, and a two-sample comparison of medians.

Consecutive cycles resemble each other (a clock that drifts, a neighbour that wakes up), so a run of n cycles
is worth fewer than n independent ones. Everything here therefore works on contiguous blocks of cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri, stdtrit

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
BLOCKS = 20
SHORTEST_BLOCK = 10
SIGNIFICANT = 0.05
FEWEST_RUNS = 4
"""Runs, or blocks, a side below which no difference reaches the 5% level, whatever they hold."""
_EXACT_UP_TO = 8


@dataclass(frozen=True)
class Estimate:
    """A median of `n` values with its 95% interval; `low` and `high` are None where too few values allow one."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Cost:
    """Time per cycle in ms, over the cycles that spend any.

    `share` is its mean part of the period over all cycles (0 in those without it), so parts of a whole add up.
    """

    median: Estimate
    p90: float
    share: float

    @property
    def ms(self) -> float:
        """The median, in ms."""
        return self.median.value


@dataclass(frozen=True)
class Shift:
    """How much larger b is than a: `ratio` of the medians, its 95% interval, and the Mann-Whitney p."""

    ratio: float
    low: float | None
    high: float | None
    p: float

    @property
    def shown(self) -> bool:
        """Whether a difference is shown at the 5% level."""
        return self.p < SIGNIFICANT


def present(values: Floats) -> Floats:
    """The values that are not NaN, in order."""
    return np.asarray(values[~np.isnan(values)])


def blocks_of(values: int) -> int:
    """How many blocks so many values make: up to 20 of at least 10 each."""
    return int(np.clip(values // SHORTEST_BLOCK, 1, BLOCKS))


def block_medians(values: Floats) -> Floats:
    """Medians of contiguous blocks; NaN is left out first."""
    values = present(values)
    if not len(values):
        return values
    return np.array([np.median(block) for block in np.array_split(values, blocks_of(len(values)))])


def median_estimate(values: Floats) -> Estimate | None:
    """The median of a series of cycles and its 95% interval; None where every value is NaN.

    With 40 values or more the interval is by sectioning: Student's t on the scatter of the medians of 20 contiguous
    blocks around the overall median (Asmussen and Glynn, Stochastic Simulation, 2007, III.5a; 10 to 30 blocks after
    Schmeiser, Batch size effects in the analysis of simulation output, Operations Research 30, 1982). Fewer
    values get the distribution-free interval of order statistics, which takes them as independent.
    """
    values = present(values)
    if not len(values):
        return None
    middle = float(np.median(values))
    if len(values) < 4 * SHORTEST_BLOCK:
        return Estimate(middle, *_order_statistics(values), len(values))
    medians = block_medians(values)
    freedom = len(medians) - 1
    error = np.sqrt(np.sum((medians - middle) ** 2) / freedom / len(medians))
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * error)
    return Estimate(middle, middle - half, middle + half, len(values))


def cost(values: Floats, period: Floats) -> Cost | None:
    """What `values` cost of `period`, both [cycles] in ns and NaN where unknown; None if no cycle has a value."""
    median = median_estimate(values / 1e6)
    if median is None:
        return None
    known = period > 0
    share = float(np.mean(np.nan_to_num(values[known]) / period[known])) if known.any() else 0.0
    return Cost(median, float(np.percentile(present(values), 90)) / 1e6, share)


def _order_statistics(values: Floats) -> tuple[float | None, float | None]:
    ranks = np.arange(len(values))
    outside = int(np.sum(bdtr(ranks, len(values), 0.5) <= (1 - CONFIDENCE) / 2))
    if outside == 0:
        return None, None
    ordered = np.sort(values)
    return float(ordered[outside - 1]), float(ordered[-outside])


def run_medians(runs: Sequence[Floats]) -> Floats:
    """What one side of a comparison is judged on: a median per run, or of blocks where there is one run."""
    if len(runs) == 1:
        return block_medians(runs[0])
    kept = [present(run) for run in runs]
    return np.array([np.median(run) for run in kept if len(run)])


def shift(a: Sequence[Floats], b: Sequence[Floats]) -> Shift | None:
    """Compare the runs of b with those of a; None where a side has no value. Values are positive times.

    p is the two-sided Mann-Whitney test on `run_medians`; the ratio is the median of all pairs' and its interval
    holds the ratios that this test does not reject (Hodges and Lehmann, Estimates of location based on rank tests,
    1963), so that all three speak alike.
    """
    from scipy.stats import mannwhitneyu

    first, second = (np.log(np.maximum(run_medians(side), 1.0)) for side in (a, b))
    if not len(first) or not len(second):
        return None
    # Equal values make scipy take the normal approximation, which knows no least p of few runs.
    least = smallest_p(len(first), len(second))
    tied = np.ptp(np.concatenate([first, second])) == 0
    p = 1.0 if tied else max(least, float(mannwhitneyu(first, second).pvalue))
    differences = np.sort((second[:, None] - first[None, :]).ravel())
    ratio = float(np.exp(np.median(differences)))
    cut = _critical(len(first), len(second))
    if cut is None:
        return Shift(ratio, None, None, p)
    low, high = np.exp(differences[cut]), np.exp(differences[-cut - 1])
    return Shift(ratio, float(low), float(high), p)


@cache
def _critical(n: int, m: int) -> int | None:
    """The largest U that a two-sided 5% Mann-Whitney test of n against m values rejects; None if there is none."""
    tail = (1 - CONFIDENCE) / 2
    if max(n, m) > _EXACT_UP_TO:
        spread = np.sqrt(n * m * (n + m + 1) / 12)
        cut = int(np.floor(n * m / 2 - 0.5 + float(ndtri(tail)) * spread))
        return cut if cut >= 0 else None
    sums = np.array([sum(chosen) for chosen in combinations(range(n + m), n)]) - n * (n - 1) // 2
    chances = np.cumsum(np.bincount(sums, minlength=n * m + 1)) / len(sums)
    cut = int(np.sum(chances <= tail)) - 1
    return cut if cut >= 0 else None


def holm(p_values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The p-values adjusted for their number: that any below 5% is chance has a probability of 5%.

    One with a larger weight gets a larger part of it (Holm, Scandinavian Journal of Statistics 6, 1979).
    """
    values = np.asarray(p_values, dtype=np.float64)
    shares = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.argsort(values / shares, kind="stable")
    remaining = np.cumsum(shares[order][::-1])[::-1]
    stepped = np.maximum.accumulate(values[order] / shares[order] * remaining)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def smallest_p(first: int, second: int) -> float:
    """The smallest p that a two-sided Mann-Whitney test of so many runs can give."""
    return min(1.0, 2 / comb(first + second, first))
