"""What each optimization saved: interleaved arms against stock, span by span, alone, left out and together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from analyzers.conversion import Conversion, conversion
from analyzers.effects import Effect, change_of, drift, effects, not_enough
from analyzers.interactions import Interaction, interaction
from analyzers.per_cycle import STEADY, chosen_cycles
from analyzers.quantities import CYCLE, Quantity, Units, in_rounds, units
from analyzers.statistics import holm
from spantrace.errors import SpantraceError
from spantrace.recording import Recording
from spantrace.switched import KEY, Switched, from_counts, summed

STOCK = "stock"
STOCK_AGAIN = "stock again"
"""The A/A arm: the same code as stock, so that whatever differs is noise."""


@dataclass(frozen=True)
class Arm:
    """An arm against stock: the effect on every quantity, its hits, the drift of what it does not touch.

    `ids` are the optimizations that are on and `targets` their spans, `fired` the counts that the recordings have of
    them and `silent` those that never fired. `not_enough` is a sentence where the runs are too few to show anything,
    `contended` holds the runs, from 0, that the plan's rule flagged; nothing is left out for it.
    """

    name: str
    ids: tuple[str, ...]
    targets: tuple[str, ...]
    runs: int
    cycles: int
    effects: tuple[Effect, ...]
    fired: tuple[Switched, ...]
    silent: tuple[str, ...]
    drift: tuple[Effect, ...]
    conversion: Conversion | None
    not_enough: str | None
    contended: tuple[int, ...]

    def effect(self, quantity: Quantity) -> Effect | None:
        """What this arm did to a quantity; None if neither side has it."""
        return next((one for one in self.effects if one.quantity == quantity), None)

    def hits(self, name: str) -> int | None:
        """How often an optimization fired, None where the recordings do not count it."""
        return next((one.hits for one in self.fired if one.id == name), None)


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

    `again` is the A/A arm, whose effects are the noise floor; `together` the arm in which all optimizations are on.
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

    def arm(self, name: str) -> Arm | None:
        """The arm of that name."""
        return next((arm for arm in self.arms if arm.name == name), None)


def attribute(
    runs: Mapping[str, Sequence[Recording]],
    sets: Mapping[str, frozenset[str]],
    targets: Mapping[str, tuple[str, ...]],
    loads: Mapping[str, Sequence[Mapping[str, float]]] | None = None,
    contended: Mapping[str, Collection[int]] | None = None,
) -> Attribution:
    """Attribute what every arm changed to the optimizations that are on in it.

    `runs` are each arm's windows in the order in which they ran, the first of each arm in the first round and so on: 8
    rounds with a "stock again" arm, which is stock too, show one span among many. `sets` holds the
    optimizations of each arm (none for stock and "stock again"; an arm that differs in something else has its own name
    there), `targets` the spans that each is for, `loads` per window what its load saw: "itl_ms", "ttft_ms",
    "latency_ms", "tokens_per_s", "cached_tokens". Stock is the arm of that name, else the first with an empty set.
    """
    stock = _stock(runs, sets)
    flagged = {name: tuple(sorted(which)) for name, which in (contended or {}).items()}
    measured = {name: units(windows, (loads or {}).get(name, ())) for name, windows in runs.items()}
    for name, values in measured.items():
        if CYCLE not in values:
            raise SpantraceError(f"arm {name!r} has no two steady cycles in a row; record it longer, under load")
    equal = [name for name in (stock, STOCK_AGAIN) if name in measured]
    sides = {
        name: in_rounds([measured[one] for one in equal if one != name], values)
        for name, values in measured.items()
        if name != stock
    }
    arms = _drift_tested(
        _arm(name, runs[name], sets.get(name, frozenset()), targets, *side, flagged) for name, side in sides.items()
    )
    found = {arm.name: arm for arm in arms}
    every = tuple(dict.fromkeys(one for arm in arms for one in arm.ids))
    together = next((arm for arm in arms if len(every) > 1 and set(arm.ids) == set(every)), None)
    return Attribution(
        stock=stock,
        stock_runs=len(runs[stock]),
        stock_contended=flagged.get(stock, ()),
        unit="round",
        arms=arms,
        again=found.get(STOCK_AGAIN),
        together=together,
        optimizations=_optimizations(every, arms, together, targets, measured),
        interactions=tuple(
            interaction(arm.name, sides[arm.name][0][CYCLE], *(measured[name][CYCLE] for name in (arm.name, *alone)))
            for arm, alone in _joint(arms)
        ),
    )


def pair(
    stock: Sequence[Recording],
    treated: Sequence[Recording],
    names: tuple[str, str] = ("A", "B"),
    only: Collection[Quantity] = (),
) -> Attribution:
    """Two sides of a comparison; what every other run of the first one differs from the rest is its noise.

    With one run on a side its blocks of cycles are taken in place of runs. `only` names quantities, else it is all.
    """
    before, after = (
        {key: one for key, one in units(side, blocks=len(side) == 1).items() if not only or key in {CYCLE, *only}}
        for side in (stock, treated)
    )
    arms = (_arm(names[1], treated, frozenset(), {}, before, after, {}),)
    halves = [{key: values[side::2] for key, values in before.items()} for side in (0, 1)]
    again = _arm(STOCK_AGAIN, stock, frozenset(), {}, halves[0], halves[1], {}) if len(before[CYCLE]) > 1 else None
    unit = "block" if 1 in (len(stock), len(treated)) else "run"
    return Attribution(names[0], len(stock), (), unit, arms, again, None, (), ())


def _stock(runs: Mapping[str, Sequence[Recording]], sets: Mapping[str, frozenset[str]]) -> str:
    empty = [name for name in runs if not runs[name]]
    if empty:
        raise SpantraceError(f"arm {empty[0]!r} has no recording; finish the campaign, or leave the arm out")
    plain = [name for name in runs if not sets.get(name) and name != STOCK_AGAIN]
    if STOCK in runs:
        return STOCK
    if not plain:
        raise SpantraceError("the campaign has no stock arm; add one in which nothing is on")
    return plain[0]


def _arm(
    name: str,
    runs: Sequence[Recording],
    ids: frozenset[str],
    targets: Mapping[str, tuple[str, ...]],
    stock: Units,
    treated: Units,
    flagged: Mapping[str, tuple[int, ...]],
) -> Arm:
    spans = frozenset(span for one in ids for span in targets.get(one, ()))
    found = effects(stock, treated, spans)
    counted = [from_counts(one) for one in summed(one for run in runs for one in run.header.get(KEY) or [])]
    fired = tuple(one for one in counted if one.id in ids)
    silent = tuple(one.id for one in fired if not one.hits)
    never = bool(ids) and set(silent) == ids
    return Arm(
        name=name,
        ids=tuple(sorted(ids)),
        targets=tuple(sorted(spans)),
        runs=len(runs),
        cycles=sum(int(chosen_cycles(run, STEADY).sum()) for run in runs),
        effects=found,
        fired=fired,
        silent=silent,
        drift=drift(stock, treated, spans),
        conversion=conversion(stock, treated, spans, never_fired=never) if spans else None,
        not_enough=not_enough(found, spans),
        contended=flagged.get(name, ()),
    )


def _drift_tested(found: Iterable[Arm]) -> tuple[Arm, ...]:
    """The arms with the p of their untouched spans adjusted for the number of all of them."""
    arms = tuple(found)
    adjusted = iter(holm([one.change.p for arm in arms for one in arm.drift if one.change]))
    return tuple(replace(arm, drift=tuple(one.with_p(next(adjusted)) for one in arm.drift)) for arm in arms)


def _optimizations(
    every: Sequence[str],
    arms: Sequence[Arm],
    together: Arm | None,
    targets: Mapping[str, tuple[str, ...]],
    measured: Mapping[str, Units],
) -> tuple[Optimization, ...]:
    without = {}
    for one in every:
        rest = set(every) - {one}
        other = next((arm for arm in arms if rest and set(arm.ids) == rest), None)
        if together and other:
            without[one] = change_of(CYCLE, *in_rounds([measured[together.name]], measured[other.name]))
    adjusted = dict(zip(without, holm([effect.change.p for effect in without.values() if effect.change]), strict=True))
    return tuple(
        Optimization(
            one,
            tuple(targets.get(one, ())),
            next((arm for arm in arms if arm.ids == (one,)), None),
            without[one].with_p(adjusted[one]) if one in without else None,
        )
        for one in every
    )


def _joint(arms: Sequence[Arm]) -> list[tuple[Arm, list[str]]]:
    """Every arm of several optimizations, with the names of the arms in which each of them is alone."""
    alone = {arm.ids[0]: arm.name for arm in reversed(arms) if len(arm.ids) == 1}
    return [(arm, [alone[one] for one in arm.ids]) for arm in arms if len(arm.ids) > 1 and set(arm.ids) <= set(alone)]
