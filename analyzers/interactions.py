"""Whether optimizations overlap: what they save together, less the sum of what each saves alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.changes import estimate, middle, middles, resampled
from analyzers.statistics import FEWEST_RUNS, Estimate, Floats


@dataclass(frozen=True)
class Interaction:
    """What an arm saves of the cycle less the sum of what its optimizations save alone, in ms and as a part of stock's.

    Below 0 they save less together than apart: they overlap. `enough` is whether there are rounds enough to show it.
    """

    arm: str
    joint_ms: float
    sum_ms: float
    interaction: Estimate
    relative: Estimate
    enough: bool

    @property
    def shown(self) -> bool:
        """Whether there are rounds enough, and the interval leaves 0 out."""
        return self.enough and self.interaction.excludes_zero


def interaction(arm: str, stock: Floats, joint: Floats, *alone: Floats, enough: bool) -> Interaction | None:
    """Of the cycle's ms in stock's arms, [arms, rounds], in the arm where all are on and in those of each, [rounds].

    NaN is a round that an arm lacks; None where they have no round in common.
    """
    level = stock.mean(axis=0)
    saved = np.array([level - one for one in (joint, *alone)])
    whole = ~np.isnan(saved).any(axis=0)
    level, saved, rounds = level[whole], saved[:, whole], int(whole.sum())
    if not rounds:
        return None
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
        enough=enough and rounds >= FEWEST_RUNS,
    )
