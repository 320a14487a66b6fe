"""Holds the contests of optimizations in turn: what the race of each shows, as figures with intervals."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzers.statistics import Estimate
    from optimized.cases import Contest
    from optimized.optimization import Optimization
    from optimized.reference_cycle.settings import Settings
    from optimized.timing import Race

NOISY = 0.1
"""Half an interval's width, as a share of the median, from which a figure says more of the machine's other work."""


@dataclass(frozen=True)
class Measured:
    """One optimization at one batch size: microseconds a call, the ratio of the pairs, and what must be moved.

    `floor` is how long moving `moved` bytes takes at the speed of a large copy; `timed` is "graphs", "calls" or "host".
    """

    optimization: str
    work: str
    batch: int
    stock: Estimate
    fast: Estimate
    speedup: Estimate
    moved: int
    floor: float
    timed: str
    why_not_captured: str | None

    @property
    def shown(self) -> bool:
        """Whether the interval of the ratio leaves 1 out."""
        low, high = self.speedup.low, self.speedup.high
        return low is not None and high is not None and not low <= 1 <= high

    @property
    def noisy(self) -> bool:
        """Whether a side scatters so much that other work may have taken the processor."""
        return any(spread is None or spread > NOISY for spread in map(spread, (self.stock, self.fast)))


def spread(estimate: Estimate) -> float | None:
    """Half the interval's width, as a share of the median."""
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.high - estimate.low) / 2 / estimate.value


def measure(
    items: Sequence[Optimization], settings: Settings, batches: Sequence[int], repeats: int
) -> tuple[float, list[Measured]]:
    """The device's copy bandwidth in bytes a second, and every optimization at every batch size."""
    from optimized.timing import copy_bandwidth
    from spantrace.built_in.running import within_memory

    sizes = [replace(settings, batch=batch) for batch in batches]
    for item in items:
        for at in sizes:
            _refuse_too_large(item, at)
    with within_memory(settings):
        bandwidth = copy_bandwidth(settings.device, repeats)
        return bandwidth, [_held(item, at, repeats, bandwidth) for item in items for at in sizes]


def _held(item: Optimization, settings: Settings, repeats: int, bandwidth: float) -> Measured:
    from optimized.timing import race

    gc.collect()  # a cycle's models refer to themselves, and the last ones must make room
    assert item.contest is not None
    contest = item.contest(settings)
    return _measured(item.id, settings.batch, contest, race(contest, settings.device, repeats), bandwidth)


def _refuse_too_large(item: Optimization, settings: Settings) -> None:
    """SpantraceError where not even what a contest must build fits: the target, or a drafter behind few layers."""
    from optimized.cases import behind_a_shallow_target
    from spantrace.built_in.memory import refuse_too_large

    if any(not span.startswith("draft.") for span in item.targets):
        refuse_too_large(settings, drafts=False)
    else:
        refuse_too_large(behind_a_shallow_target(replace(settings, drafter="dflash")), (item.id,))


def _measured(name: str, batch: int, contest: Contest, race: Race, bandwidth: float) -> Measured:
    import numpy as np

    from analyzers.statistics import median_estimate

    stock, fast = np.array(race.stock) * 1e6, np.array(race.fast) * 1e6
    estimates = [median_estimate(values) for values in (stock, fast, stock / fast)]
    timed = "host" if race.why_not else "graphs" if race.captured else "calls"
    stock_us, fast_us, speedup = (estimate for estimate in estimates if estimate is not None)
    moved, floor = contest.moved(), contest.moved() / bandwidth * 1e6
    return Measured(name, contest.work, batch, stock_us, fast_us, speedup, moved, floor, timed, race.why_not)
