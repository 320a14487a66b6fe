"""Whether what was saved in a span came out of the cycle, and if not, which side hid it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analyzers.changes import Change, change, estimate, middle, middles, resampled
from analyzers.effects import Effect, level_of_first, resolves
from analyzers.quantities import BALANCE, CYCLE, Quantity, Units, Where, outermost, total
from analyzers.statistics import SIGNIFICANT, Estimate, Floats

Verdict = Literal[
    "converted", "partly", "hidden", "not told", "sum not told", "nothing saved", "never fired", "not enough"
]
Side = Literal["host", "gpu", "elsewhere"]
WHOLE = 0.9
"""From this part on a saving counts as converted."""


@dataclass(frozen=True)
class Conversion:
    """`saved` is the change of the target spans' sum on `side`, the one on which they saved more, `share` the part of
    it by which the cycle got shorter.

    "not told" is a saving that is smaller than what the cycle's interval can resolve, "sum not told" one that is shown
    of a target span and not of their sum; with "not enough" runs none could be shown. `hidden_by` is who bound the
    cycle instead, where the saving was hidden in part or whole: the host, the GPU, or another process ("elsewhere").
    """

    verdict: Verdict
    side: Side | None = None
    saved: Change | None = None
    share: Estimate | None = None
    hidden_by: Side | None = None


def conversion(
    stock: Units, treated: Units, targets: frozenset[str], found: Sequence[Effect], *, never_fired: bool = False
) -> Conversion:
    """Compare the saving in the target spans with that of the cycle; each must be shown among the effects `found`."""
    if never_fired:
        return Conversion("never fired")
    cycle = next((one for one in found if one.quantity == CYCLE), None)
    if cycle is None or cycle.change is None or not resolves(found, targets):
        return Conversion("not enough")
    savings = [_saving(stock, treated, targets, side) for side in ("host", "gpu")]
    level = level_of_first(found, targets)
    told = [one for one in savings if one and one.change.p < level]
    shown = [one for one in told if one.change.difference.value < 0]
    if not shown:
        drowned = _saved_sides(found, targets) - {one.side for one in told}
        return Conversion("sum not told" if drowned else "nothing saved")
    most = min(shown, key=lambda one: one.change.difference.value)
    share = _share(stock[CYCLE], treated[CYCLE], most.before, most.after)
    verdict = _verdict(cycle.change, most.change, share, shown=cycle.shown)
    hidden = _hidden_by(stock, treated, most.side) if verdict in ("partly", "hidden") else None
    return Conversion(verdict, most.side, most.change, share, hidden)


def _saved_sides(found: Sequence[Effect], targets: frozenset[str]) -> set[Where]:
    """The clocks on which the saving of a target span is shown."""
    shown = (one.quantity for one in found if one.saved)
    return {one.where for one in shown if one.name in targets and one.where != "own"}


@dataclass(frozen=True)
class _Saving:
    side: Side
    change: Change
    before: Floats
    after: Floats


def _saving(stock: Units, treated: Units, targets: frozenset[str], side: Literal["host", "gpu"]) -> _Saving | None:
    """The change of the sum of the targets; a side in which none of them ran spent nothing on them."""
    names = outermost(targets)
    before, after = total(stock, names, side), total(treated, names, side)
    if before is None:
        return None
    after = 0 * treated[CYCLE] if after is None else after
    found = change(before, after)
    return None if found is None else _Saving(side, found, before, after)


def _share(cycle: Floats, cycle_after: Floats, spans: Floats, spans_after: Floats) -> Estimate:
    """The change of the cycle over that of the spans, of the same rounds."""
    moved, saved = cycle_after - cycle.mean(axis=0), spans_after - spans.mean(axis=0)
    whole = ~(np.isnan(moved) | np.isnan(saved))
    moved, saved, rounds = moved[whole], saved[whole], int(whole.sum())
    value, cycles, targets = middle(moved) / middle(saved), middles(resampled(moved, 0)), middles(resampled(saved, 0))
    usable = targets < 0
    if usable.mean() < 1 - SIGNIFICANT:
        return Estimate(value, None, None, rounds)
    return estimate(value, cycles[usable] / targets[usable], rounds)


def _verdict(cycle: Change, spans: Change, share: Estimate, *, shown: bool) -> Verdict:
    if shown and cycle.difference.value < 0:
        whole = share.value >= WHOLE or (share.low is not None and share.low <= 1 <= (share.high or 0.0))
        return "converted" if whole else "partly"
    low = cycle.difference.low
    return "not told" if low is None or low <= spans.difference.value else "hidden"


def _hidden_by(stock: Units, treated: Units, side: Side) -> Side:
    """A saving on the GPU is hidden by the host; one of the host by what its waits grew for, or by neither."""
    if side == "gpu":
        return "host"
    waiting, *left, _ = (_grown(stock, treated, quantity) for quantity in BALANCE)
    on_gpu = Quantity("cycle", "gpu") in stock
    return "gpu" if on_gpu and waiting > max(0.0, sum(left)) else "elsewhere"


def _grown(stock: Units, treated: Units, quantity: Quantity) -> float:
    if quantity not in stock or quantity not in treated:
        return 0.0
    grown = change(stock[quantity], treated[quantity])
    return grown.difference.value if grown else 0.0
