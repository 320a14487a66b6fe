"""Whether optimizations overlap: what they save together, less the sum of what each saves alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.changes import estimate, middle, middles, resampled
from analyzers.statistics import Estimate, Floats


@dataclass(frozen=True)
class Interaction:
    """What an arm saves of the cycle less the sum of what its optimizations save alone, in ms and as a part of stock's.

    Below 0 they save less together than apart: they overlap.
    """

    arm: str
    joint_ms: float
    sum_ms: float
    interaction: Estimate
    relative: Estimate

    @property
    def shown(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.interaction.excludes_zero


def interaction(arm: str, stock: Floats, joint: Floats, *alone: Floats) -> Interaction:
    """Of the cycle's ms in stock's arms, [arms, rounds], in the arm where all are on and in those of each, [rounds]."""
    rounds = min(stock.shape[1], *(len(one) for one in (joint, *alone)))
    level = stock.mean(axis=0)[:rounds]
    saved = [level - one[:rounds] for one in (joint, *alone)]
    together, *apart = (middle(one) for one in saved)
    drawn = [middles(resampled(one, 0)) for one in saved]
    samples: Floats = drawn[0] - np.sum(drawn[1:], axis=0)
    value, base = together - sum(apart), float(np.median(level))
    return Interaction(
        arm=arm,
        joint_ms=together,
        sum_ms=sum(apart),
        interaction=estimate(value, samples, rounds),
        relative=estimate(value / base, samples / np.median(resampled(level, 0), axis=1), rounds),
    )
