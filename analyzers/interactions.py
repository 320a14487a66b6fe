"""Whether optimizations overlap: what they save together, less the sum of what each saves alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzers.arms import Arm
from analyzers.changes import estimate, middle, middles, resampled
from analyzers.quantities import CYCLE, Units
from analyzers.statistics import FEWEST_RUNS, Estimate, Floats


@dataclass(frozen=True)
class Interaction:
    """What an arm saves of the cycle less the sum of what its optimizations save alone, in ms and as a part of stock's.

    Below 0 they save less together than apart: they overlap. `enough` is whether there are rounds enough to show it;
    `left_out` never fired in the arm, and are not in the sum.
    """

    arm: str
    joint_ms: float
    sum_ms: float
    interaction: Estimate
    relative: Estimate
    enough: bool
    left_out: tuple[str, ...] = ()

    @property
    def shown(self) -> bool:
        """Whether there are rounds enough, and the interval leaves 0 out."""
        return self.enough and self.interaction.excludes_zero


@dataclass(frozen=True)
class Untold:
    """An arm whose optimizations cannot be held against each alone, because these never fired in it, or not alone."""

    arm: str
    silent: tuple[str, ...]


def interactions(
    arms: Sequence[Arm], sides: Mapping[str, tuple[Units, Units]], measured: Mapping[str, Units]
) -> tuple[tuple[Interaction, ...], tuple[Untold, ...]]:
    """Of every arm of several optimizations with an arm for each of those that fired in it; and what is not told."""
    alone = {arm.ids[0]: arm for arm in reversed(arms) if len(arm.ids) == 1}
    found, untold = [], []
    for arm in arms:
        acting = [one for one in arm.ids if one not in arm.silent]
        if len(arm.ids) < 2 or not set(acting) <= set(alone):
            continue
        others = [alone[one] for one in acting]
        idle = tuple(one.ids[0] for one in others if one.never_fired)
        if len(acting) < 2 or idle:
            untold.append(Untold(arm.name, (*arm.silent, *idle)))
            continue
        enough, names = all(one.enough for one in (arm, *others)), [arm.name, *(one.name for one in others)]
        cycles = [measured[name][CYCLE] for name in names]
        one = interaction(arm.name, sides[arm.name][0][CYCLE], *cycles, enough=enough)
        found += [replace(one, left_out=arm.silent)] if one is not None else []
    return tuple(found), tuple(untold)


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
