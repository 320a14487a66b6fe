"""Campaigns of several days as one: what each arm changed on each day, the range that holds all, and a final re-run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzers.attribution import STOCK_AGAIN, Attribution
from analyzers.changes import Change
from analyzers.quantities import CYCLE, Quantity
from analyzers.statistics import Estimate
from spantrace.errors import EXIT_GATE_FAILED, EXIT_NOT_COMPARABLE, SpantraceError


@dataclass(frozen=True)
class Range:
    """One quantity of one arm: its relative change in each campaign (None where that lacks it) and in the final one.

    `low` and `high` bound the intervals of all campaigns but the final one, None where one has no interval.
    """

    arm: str
    quantity: Quantity
    changes: tuple[Estimate | None, ...]
    low: float | None
    high: float | None
    final: Estimate | None

    @property
    def agrees(self) -> bool | None:
        """Whether there is a change that lies in the interval of every campaign; None with fewer than two intervals."""
        found = [one for one in self.changes if one is not None and one.low is not None and one.high is not None]
        if len(found) < 2:
            return None
        return max(one.low or 0.0 for one in found) <= min(one.high or 0.0 for one in found)

    @property
    def confirmed(self) -> bool | None:
        """Whether the final re-run's interval and the range have a change in common, None where one is not known."""
        if self.final is None or self.low is None or self.high is None:
            return None
        if self.final.low is None or self.final.high is None:
            return None
        return self.final.low <= self.high and self.low <= self.final.high


@dataclass(frozen=True)
class Envelope:
    """The ranges of every arm's cycle, target spans and load, over the campaigns in order."""

    campaigns: tuple[str, ...]
    final: str | None
    ranges: tuple[Range, ...]

    @property
    def treated(self) -> tuple[Range, ...]:
        """The ranges of the arms that are not stock again, which says nothing of what an optimization does."""
        return tuple(one for one in self.ranges if one.arm != STOCK_AGAIN)

    @property
    def outside(self) -> tuple[Range, ...]:
        """Those in which the final re-run's whole interval lies outside."""
        return tuple(one for one in self.treated if one.confirmed is False)

    @property
    def apart(self) -> tuple[Range, ...]:
        """Those in which no change lies in all campaigns' intervals."""
        return tuple(one for one in self.treated if one.agrees is False)

    @property
    def unknown(self) -> tuple[Range, ...]:
        """The cycles of which it is not known whether the campaigns agree, or the final re-run confirms them."""
        cycles = (one for one in self.treated if one.quantity == CYCLE)
        return tuple(one for one in cycles if (one.confirmed if self.final else one.agrees) is None)

    @property
    def known(self) -> bool:
        """Whether that is known of the cycle of any arm."""
        return len(self.unknown) < sum(one.quantity == CYCLE for one in self.treated)

    @property
    def exit_code(self) -> int:
        """1 where the final re-run is not confirmed, 3 where the campaigns differ or nothing is known, else 0."""
        if self.outside:
            return EXIT_GATE_FAILED
        return EXIT_NOT_COMPARABLE if self.apart or not self.known else 0


def envelope(campaigns: Mapping[str, Attribution], final: str | None = None) -> Envelope:
    """Combine campaigns by their names; the one called `final`, of the code as it is now, stays beside the others."""
    days = [name for name in campaigns if name != final]
    if not days:
        raise SpantraceError("there is no campaign to combine beside the final one; name at least one more")
    if final is not None and final not in campaigns:
        raise SpantraceError(f"no campaign is called {final!r}; choose from {', '.join(days)}")
    ranges = [
        _range(arm, quantity, [campaigns[day] for day in days], campaigns[final] if final else None)
        for arm, quantity in _keys(list(campaigns.values()))
    ]
    return Envelope(tuple(days), final, tuple(ranges))


def _keys(campaigns: Sequence[Attribution]) -> list[tuple[str, Quantity]]:
    """The cycle, the targets and the load's figures of every arm of any campaign."""
    keys: dict[tuple[str, Quantity], None] = {}
    for campaign in campaigns:
        for arm in campaign.arms:
            targets = [Quantity(name, where) for name in arm.targets for where in ("host", "gpu")]
            load = [one.quantity for one in arm.effects if one.quantity.where == "run"]
            keys |= dict.fromkeys((arm.name, one) for one in (CYCLE, *targets, *load) if arm.effect(one))
    names = list(dict.fromkeys(name for name, _ in keys if name != STOCK_AGAIN))
    order = [*([STOCK_AGAIN] if any(name == STOCK_AGAIN for name, _ in keys) else []), *names]
    return sorted(keys, key=lambda key: order.index(key[0]))


def _range(arm: str, quantity: Quantity, days: Sequence[Attribution], final: Attribution | None) -> Range:
    changes = [_relative(day, arm, quantity) for day in days]
    known = [one for one in changes if one is not None]
    lows = [one.low for one in known if one.low is not None]
    highs = [one.high for one in known if one.high is not None]
    whole = bool(known) and len(lows) == len(known) == len(highs)
    return Range(
        arm,
        quantity,
        tuple(changes),
        min(lows) if whole else None,
        max(highs) if whole else None,
        None if final is None else _relative(final, arm, quantity),
    )


def _relative(campaign: Attribution, arm: str, quantity: Quantity) -> Estimate | None:
    """The change in a campaign; None where nothing fired that was on."""
    found = campaign.arm(arm)
    effect = None if found is None or found.never_fired else found.effect(quantity)
    change: Change | None = None if effect is None else effect.change
    return None if change is None else change.relative
