"""What each optimization saved: interleaved arms against stock, span by span, alone, left out and together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzers.arms import Arm, Lost, against
from analyzers.changes import smallest_p_in_rounds
from analyzers.economics import own_load
from analyzers.effects import Effect, change_of
from analyzers.interactions import Interaction, Untold, interactions
from analyzers.quantities import CYCLE, Quantity, Units, in_rounds, placed, series, units
from analyzers.statistics import Estimate, Floats, holm, median_estimate
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.recording import Recording
from spantrace.switched import switched

STOCK = "stock"
STOCK_AGAIN = "stock again"
"""The A/A arm: the same code as stock, so that whatever differs is noise."""
Runs = Mapping[str, Sequence[Recording]]
Sets = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Optimization:
    """One optimization: the arm in which it is on alone, and what leaving it out of all of them does to the cycle."""

    id: str
    targets: tuple[str, ...]
    alone: Arm | None
    left_out: Effect | None


@dataclass(frozen=True)
class Attribution:
    """All arms of a campaign against stock; `unit` is what is compared: "round", or "run" or "block" without turns.

    `again` is the A/A arm, whose effects are the noise floor; `together` the arm in which all optimizations are on, of
    those that differ in nothing else. `untold` are the arms whose interaction cannot be told, `lost` those that cannot
    be held against stock.
    """

    stock: str
    stock_runs: int
    stock_contended: tuple[int, ...]
    unit: str
    arms: tuple[Arm, ...]
    again: Arm | None
    together: Arm | None
    optimizations: tuple[Optimization, ...]
    interactions: tuple[Interaction, ...]
    untold: tuple[Untold, ...] = ()
    lost: tuple[Lost, ...] = ()

    def arm(self, name: str) -> Arm | None:
        """The arm of that name."""
        return next((arm for arm in self.arms if arm.name == name), None)


def attribute(
    runs: Runs,
    sets: Sets,
    targets: Mapping[str, tuple[str, ...]],
    loads: Mapping[str, Sequence[Mapping[str, float]]] | None = None,
    contended: Mapping[str, Collection[int]] | None = None,
    *,
    rounds: Mapping[str, Sequence[int]] | None = None,
    apart: Mapping[str, tuple[str, ...]] | None = None,
    uncounted: Collection[str] = (),
) -> Attribution:
    """Attribute what every arm changed to the optimizations that are on in it.

    `runs` are each arm's windows and `rounds` the round in which each ran, from 0; by default one in each round. Only
    windows of one round are held against each other: 8 rounds with a "stock again" arm, which is stock too, show one
    span among many. `sets` holds the optimizations of each arm (none for stock and "stock again"), of which no
    recording counts those in `uncounted`, `apart` the arms that differ from stock in something else as well, with the
    spans that this is for, `targets` the spans that each optimization is for, `loads` per window what its load saw:
    "itl_ms", "ttft_ms", "latency_ms", "tokens_per_s", "cached_tokens". Stock is the arm of that name, else the first
    with an empty set, else "stock again".
    """
    others = apart or {}
    stock = _stock(runs, {name: sets.get(name) or frozenset(others.keys() & {name}) for name in runs})
    flagged = {name: tuple(sorted(which)) for name, which in (contended or {}).items()}
    measured = _in_their_rounds(runs, loads or {}, rounds or {})
    if CYCLE not in measured[stock]:
        raise SpantraceError(f"arm {stock!r} has no two steady cycles in a row; record it longer, under load")
    equal = [name for name in dict.fromkeys((stock, STOCK_AGAIN)) if CYCLE in measured.get(name, {})]
    sides, lost = _sides(measured, stock, equal, {name for name in runs if not runs[name]})
    spans = {
        name: frozenset((*others.get(name, ()), *(span for one in sets.get(name, ()) for span in targets.get(one, ()))))
        for name in sides
    }
    arms = _drift_tested(
        against(name, runs[name], sets.get(name, frozenset()), spans[name], side, flagged, uncounted)
        for name, side in sides.items()
    )
    plain = [arm for arm in arms if arm.name not in others]
    every = {one for name in runs if name not in others for one in sets.get(name, ())}
    together = next((arm for arm in plain if len(every) > 1 and set(arm.ids) == every), None)
    joint, untold = interactions(plain, sides, measured)
    return Attribution(
        stock=stock,
        stock_runs=len(runs[stock]),
        stock_contended=flagged.get(stock, ()),
        unit="round",
        arms=arms,
        again=next((arm for arm in arms if arm.name == STOCK_AGAIN), None),
        together=together,
        optimizations=_optimizations(arms, plain, together, targets, measured),
        interactions=joint,
        untold=untold,
        lost=lost,
    )


def pair(
    stock: Sequence[Recording],
    treated: Sequence[Recording],
    names: tuple[str, str] = ("A", "B"),
    only: Collection[Quantity] = (),
) -> Attribution:
    """Two sides of a comparison; what every other run of the first one differs from the rest is its noise.

    With one run on a side its blocks of cycles are taken in place of runs. `only` names quantities, else it is all.
    What is switched on in the second side alone are the optimizations of its arm. A side's own medians are over all
    its cycles, as a comparison's table has them.
    """
    before, after = (
        {key: one for key, one in _alone(side).items() if not only or key in {CYCLE, *only}}
        for side in (stock, treated)
    )
    on = [{one.id for run in side for one in switched(run.header)} for side in (stock, treated)]
    arm = against(names[1], treated, on[1] - on[0], frozenset(), (before, after), {})
    cycles = [[series(run) for run in side] for side in (stock, treated)]
    arms = (replace(arm, effects=tuple(_over_all_cycles(one, *cycles) for one in arm.effects)),)
    halves = {key: values[::2] for key, values in before.items()}, {key: values[1::2] for key, values in before.items()}
    again = against(STOCK_AGAIN, stock, (), frozenset(), halves, {}) if len(before[CYCLE]) > 1 else None
    unit = "block" if 1 in (len(stock), len(treated)) else "run"
    return Attribution(names[0], len(stock), (), unit, arms, again, None, (), ())


def _alone(side: Sequence[Recording]) -> Units:
    """The quantities of a side's runs, or of the blocks of its only one, without a load that was measured outside."""
    blocks = len(side) == 1
    return units(side, [load for run in side for load in own_load(run, blocks=blocks)], blocks=blocks)


def _over_all_cycles(effect: Effect, stock: Sequence[Units], treated: Sequence[Units]) -> Effect:
    change, quantity = effect.change, effect.quantity
    if change is None or quantity.where == "run":
        return effect
    a, b = (_median_of(values, [run[quantity] for run in side if quantity in run])
            for values, side in ((change.a, stock), (change.b, treated)))  # fmt: skip
    return replace(effect, change=replace(change, a=a, b=b))


def _median_of(known: Estimate, runs: Sequence[Floats]) -> Estimate:
    """The median over all cycles; its interval is by sectioning in one run, else that of the runs, which holds it."""
    median = median_estimate(np.concatenate(runs))
    if median is None or known.low is None or known.high is None:
        return known if median is None else replace(known, value=median.value)
    if len(runs) == 1:
        return median
    return replace(known, value=median.value, low=min(known.low, median.value), high=max(known.high, median.value))


def _stock(runs: Runs, sets: Sets) -> str:
    plain = [name for name in runs if not sets.get(name) and name != STOCK_AGAIN]
    if STOCK not in runs and not plain:
        raise SpantraceError("the campaign has no stock arm; add one in which nothing is on")
    stock = STOCK if STOCK in runs else plain[0]
    found = next((name for name in (stock, STOCK_AGAIN) if runs.get(name)), None)
    if found is None:
        raise SpantraceError(f"arm {stock!r} has no recording; finish the campaign", EXIT_NOT_COMPARABLE)
    return found


def _in_their_rounds(
    runs: Runs, loads: Mapping[str, Sequence[Mapping[str, float]]], rounds: Mapping[str, Sequence[int]]
) -> dict[str, Units]:
    """Every arm's quantities, each window's value at the place of its round."""
    where = {name: rounds.get(name, range(len(windows))) for name, windows in runs.items()}
    count = 1 + max((one for some in where.values() for one in some), default=0)
    return {name: placed(units(windows, loads.get(name, ())), where[name], count) for name, windows in runs.items()}


def _sides(
    measured: Mapping[str, Units], stock: str, equal: Sequence[str], empty: Collection[str]
) -> tuple[dict[str, tuple[Units, Units]], tuple[Lost, ...]]:
    """Stock's values and its own for every arm that has a round in common with stock; and the arms that have none."""
    sides, lost = {}, []
    for name, values in measured.items():
        if name == stock:
            continue
        if CYCLE not in values:
            lost.append(Lost(name, "has no recording" if name in empty else "has no two steady cycles in a row"))
            continue
        side = in_rounds(_controls([measured[one] for one in equal if one != name], values), values)
        if change_of(CYCLE, *side).change is None:
            lost.append(Lost(name, f"has no round in common with {stock}"))
        else:
            sides[name] = side
    return sides, tuple(lost)


def _controls(equal: Sequence[Units], values: Units) -> Sequence[Units]:
    """Stock and the A/A arm, or stock alone where the A/A arm lacks so many rounds that less could be shown with it."""

    def least_p(some: Sequence[Units]) -> float:
        whole = ~np.isnan([one[CYCLE] for one in (*some, values)]).any(axis=0)
        return smallest_p_in_rounds(len(some), int(whole.sum()))

    return min((equal, equal[:1]), key=least_p)


def _drift_tested(found: Iterable[Arm]) -> tuple[Arm, ...]:
    """The arms with the p of their untouched spans adjusted for the number of all of them."""
    arms = tuple(found)
    adjusted = iter(holm([one.change.p for arm in arms for one in arm.drift if one.change]))
    return tuple(replace(arm, drift=tuple(one.with_p(next(adjusted)) for one in arm.drift)) for arm in arms)


def _optimizations(
    arms: Sequence[Arm],
    plain: Sequence[Arm],
    together: Arm | None,
    targets: Mapping[str, tuple[str, ...]],
    measured: Mapping[str, Units],
) -> tuple[Optimization, ...]:
    without = {}
    for one in together.ids if together else ():
        other = next((arm for arm in plain if together and set(arm.ids) == set(together.ids) - {one}), None)
        if together and other and other.ids:
            without[one] = change_of(CYCLE, *in_rounds([measured[together.name]], measured[other.name]))
    tested = {one: left for one, left in without.items() if left.change}
    adjusted = dict(zip(tested, holm([left.change.p for left in tested.values() if left.change]), strict=True))
    return tuple(
        Optimization(
            one,
            tuple(targets.get(one, ())),
            next((arm for arm in plain if arm.ids == (one,)), None),
            tested[one].with_p(adjusted[one]) if one in tested else None,
        )
        for one in dict.fromkeys(one for arm in arms for one in arm.ids)
    )
