"""How much one side's runs differ from another's: a bootstrap interval over runs or blocks, and a rank test's p.

Runs that took turns are compared within their rounds: what drifts or wanders slower than a round then cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from analyzers.statistics import CONFIDENCE, FEWEST_RUNS, Estimate, Floats, present, smallest_p

RESAMPLES = 2000


@dataclass(frozen=True)
class Change:
    """How much larger b is than a: in their unit, as a part of a (None where a run has 0), and the rank test's p.

    `a` and `b` are the medians of the runs. `separation` is the least distance of a run of b from one of a on the side
    on which b lies, negative where they overlap. `units` counts the runs, or blocks, of each side, `rounds` the rounds
    in which they took turns (0 where they did not). No p can be below `least_p`.
    """

    a: Estimate
    b: Estimate
    difference: Estimate
    relative: Estimate | None
    p: float
    separation: float
    units: tuple[int, int]
    rounds: int
    least_p: float


def change(a: Floats, b: Floats) -> Change | None:
    """Compare b with a, whatever their signs; None where a side has no value.

    Both hold a value per run or block, [runs]; or a holds the runs of one or more equal arms, [arms, rounds], which
    took turns with those of b, [rounds].
    """
    if a.ndim == 2:
        whole = ~(np.isnan(a).any(axis=0) | np.isnan(b))
        return _in_rounds(a[:, whole], b[whole]) if whole.any() else None
    a, b = present(a), present(b)
    return _apart(a, b) if len(a) and len(b) else None


def _in_rounds(a: Floats, b: Floats) -> Change:
    """The difference is the median of all rounds' and their pairs' means (Hodges and Lehmann).

    p is exact: the rank of b's run among those of its round, summed (van Elteren, On the combination of independent
    two-sample tests of Wilcoxon, Bulletin of the International Statistical Institute 37, 1960).
    """
    level, rounds = a.mean(axis=0), len(b)
    shifted, base = middle(b - level), float(np.median(level))
    relative = None
    if min(level.min(), b.min()) > 0:
        ratio = np.log(b / level)
        relative = estimate(float(np.expm1(middle(ratio))), np.expm1(middles(resampled(ratio, 0))), rounds)
    return Change(
        a=estimate(base, np.median(resampled(level, 0), axis=1), rounds),
        b=estimate(float(np.median(b)), np.median(resampled(b, 0), axis=1), rounds),
        difference=estimate(shifted, middles(resampled(b - level, 0)), rounds),
        relative=relative,
        p=_rank_p(a, b),
        separation=_separation(a.ravel(), b, shifted),
        units=(a.size, rounds),
        rounds=rounds,
        least_p=smallest_p_in_rounds(len(a), rounds),
    )


def _apart(a: Floats, b: Floats) -> Change:
    """The difference is the median of all pairs' (Hodges and Lehmann), p that of Mann and Whitney."""
    from scipy.stats import mannwhitneyu

    units, base = (len(a), len(b)), float(np.median(a))
    shifted = float(np.median(b[:, None] - a[None, :]))
    first, second = resampled(a, 0), resampled(b, 1)
    relative = None
    if min(a.min(), b.min()) > 0:
        ratio = float(np.exp(np.median(np.log(b)[:, None] - np.log(a)[None, :])))
        relative = estimate(ratio - 1, np.expm1(location_shift(np.log(first), np.log(second))), *units)
    return Change(
        a=estimate(base, np.median(first, axis=1), len(a)),
        b=estimate(float(np.median(b)), np.median(second, axis=1), len(b)),
        difference=estimate(shifted, location_shift(first, second), *units),
        relative=relative,
        p=1.0 if np.ptp(np.concatenate([a, b])) == 0 else float(mannwhitneyu(a, b).pvalue),
        separation=_separation(a, b, shifted),
        units=units,
        rounds=0,
        least_p=smallest_p(*units),
    )


def _separation(a: Floats, b: Floats, shifted: float) -> float:
    return float(b.min() - a.max() if shifted > 0 else a.min() - b.max())


def _rank_p(a: Floats, b: Floats) -> float:
    """The two-sided p of the sum of b's ranks; the run of b may be any of its round with the same chance."""
    from scipy.stats import rankdata

    ranks = rankdata(np.vstack([b, a]), axis=0)
    places = np.rint(2 * ranks).astype(np.int64) - (len(a) + 2)
    chances, reach = np.ones(1), 0
    for column in places.T:
        chances = np.convolve(chances, np.bincount(column + len(a), minlength=2 * len(a) + 1) / len(column))
        reach += len(a)
    sums = np.arange(-reach, reach + 1)
    return min(1.0, float(chances[np.abs(sums) >= abs(int(places[0].sum()))].sum()))


def smallest_p_in_rounds(controls: int, rounds: int) -> float:
    """The smallest p of a comparison with so many equal arms in so many rounds."""
    return min(1.0, 2 * (controls + 1.0) ** -rounds)


def middle(values: Floats) -> float:
    """The median of values and of their pairs' means."""
    return float(middles(values[None, :])[0])


def middles(samples: Floats) -> Floats:
    """`middle` of each sample, [samples]."""
    first, second = np.triu_indices(samples.shape[1])
    return np.asarray(np.median((samples[:, first] + samples[:, second]) / 2, axis=1))


def resampled(units: Floats, stream: int) -> Floats:
    """Bootstrap samples of the medians of runs or blocks, [RESAMPLES, units]; another `stream` draws independently.

    What is nested in a unit goes with it (Davison and Hinkley, Bootstrap Methods and their Application, 1997, 3.8).
    """
    return np.asarray(units[_drawn(len(units), stream)])


@cache
def _drawn(units: int, stream: int) -> NDArray[np.int64]:
    return np.random.default_rng([stream, units]).integers(0, units, (RESAMPLES, units))


def location_shift(a: Floats, b: Floats) -> Floats:
    """The median of all pairs' differences b less a of each sample, [samples]."""
    return np.asarray(np.median((b[:, :, None] - a[:, None, :]).reshape(len(a), -1), axis=1))


def estimate(value: float, samples: Floats, *units: int) -> Estimate:
    """A value with the 95% interval of its bootstrap samples, for which so many units of each side were drawn from.

    The percentiles make up for few units as Student's t does (Hesterberg, What Teachers Should Know About the
    Bootstrap, The American Statistician 69, 2015, expanded percentiles).
    """
    fewest = min(units)
    if fewest < FEWEST_RUNS:
        return Estimate(value, None, None, fewest)
    freedom, narrow = sum(units) - len(units), np.sqrt(fewest / (fewest - 1))
    tail = float(ndtr(stdtrit(freedom, (1 - CONFIDENCE) / 2) * narrow))
    low, high = np.quantile(samples, [tail, 1 - tail])
    return Estimate(value, float(low), float(high), fewest)
