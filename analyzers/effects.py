"""One arm's quantities against stock's, all tested together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analyzers.changes import Change, change, smallest_p_in_rounds
from analyzers.quantities import ACCEPTANCE, BALANCE, CYCLE, Quantity, Units, Where, total, untouched
from analyzers.statistics import FEWEST_RUNS, SIGNIFICANT, holm, smallest_p
from spantrace.tables import many

UNTOUCHED = "untouched spans"
_CLOCKS: tuple[Where, ...] = ("host", "gpu")


@dataclass(frozen=True)
class Effect:
    """One quantity in two arms, treated against stock; `change` is None where a side lacks it, `absent` names it.

    `adjusted` is Holm's p among all that the arm tests, None for what is not tested.
    """

    quantity: Quantity
    change: Change | None
    absent: str | None = None
    adjusted: float | None = None

    @property
    def shown(self) -> bool:
        """Whether a difference is shown at the 5% level, all tests of the arm together."""
        return self.adjusted is not None and self.adjusted < SIGNIFICANT

    @property
    def saved(self) -> bool:
        """Whether it is shown to have become less."""
        return self.shown and self.change is not None and self.change.difference.value < 0

    @property
    def separated(self) -> bool:
        """Whether every treated run lies beyond every stock run."""
        return self.change is not None and self.change.separation > 0

    def with_p(self, adjusted: float) -> Effect:
        """The same effect with its adjusted p."""
        return replace(self, adjusted=adjusted)


def change_of(quantity: Quantity, stock: Units, treated: Units) -> Effect:
    """The effect on one quantity, of which at least one side has values."""
    sides = {"stock": stock.get(quantity), "treated": treated.get(quantity)}
    absent = next((name for name, values in sides.items() if values is None), None)
    return Effect(quantity, None if absent else change(stock[quantity], treated[quantity]), absent)


def effects(stock: Units, treated: Units, targets: frozenset[str]) -> tuple[Effect, ...]:
    """All quantities of either side; the p-values of those that are tested are adjusted together.

    The cycle, the target spans and what the load saw are named before the run: together they get one half of the 5%,
    all others the other half. What is left of the period (`BALANCE`) is shown, not tested.
    """
    found = [change_of(quantity, stock, treated) for quantity in dict.fromkeys([*stock, *treated])]
    tested = [one for one in found if one.change is not None and one.quantity not in BALANCE]
    first = [one for one in tested if named_before(one.quantity, targets)]
    share = {True: 1 / max(len(first), 1), False: 1 / max(len(tested) - len(first), 1)}
    weights = [share[named_before(one.quantity, targets)] for one in tested]
    adjusted = holm([one.change.p for one in tested if one.change], weights)
    corrected = {one.quantity: one.with_p(p) for one, p in zip(tested, adjusted, strict=True)}
    return tuple(corrected.get(one.quantity, one) for one in found)


def named_before(quantity: Quantity, targets: frozenset[str]) -> bool:
    """Whether a quantity is what an arm is for: the cycle, a target span, a figure of the load."""
    if quantity.where == "run":
        return quantity.name != ACCEPTANCE
    return quantity == CYCLE or (quantity.name in targets and quantity.where != "own")


def resolves(found: Sequence[Effect], targets: frozenset[str]) -> bool:
    """Whether the number of runs can show that the cycle or a target span moved."""
    cycle = next((one.change for one in found if one.quantity == CYCLE), None)
    return cycle is not None and min(cycle.units) >= FEWEST_RUNS and _can_show(cycle, _first(found, targets))


def not_enough(found: Sequence[Effect], targets: frozenset[str]) -> str | None:
    """What the number of runs cannot show, whatever they hold; None where it can show one span among all."""
    cycle = next((one.change for one in found if one.quantity == CYCLE), None)
    if cycle is None:
        return None
    fewer = min(cycle.units)
    if fewer < FEWEST_RUNS:
        return f"not enough: {many(fewer, 'run')} an arm can show nothing, at least {FEWEST_RUNS} are needed"
    first = _first(found, targets)
    needed = {"the cycle and the target spans": first, "one span among all": len(_tested(found)) - first}
    for what, count in needed.items():
        if not _can_show(cycle, count):
            runs, tests = many(fewer, "run"), many(count, "test")
            return f"not enough: {runs} an arm cannot show {what} ({tests}), {_enough(cycle, count)} could"
    return None


def level_of_first(found: Sequence[Effect], targets: frozenset[str]) -> float:
    """The p below which the least of the cycle's, the target spans' and the load's differences is shown."""
    return SIGNIFICANT / (2 * max(_first(found, targets), 1))


def _tested(found: Sequence[Effect]) -> list[Effect]:
    return [one for one in found if one.adjusted is not None and one.change is not None]


def _first(found: Sequence[Effect], targets: frozenset[str]) -> int:
    """How many of the tests share the first half of the 5%."""
    return sum(named_before(one.quantity, targets) for one in _tested(found))


def _can_show(cycle: Change, tests: int) -> bool:
    return cycle.least_p * 2 * tests < SIGNIFICANT


def _enough(cycle: Change, tests: int) -> int:
    """How many runs an arm are needed to show one difference among so many, with half of the 5%."""
    controls = cycle.units[0] // cycle.units[1]
    least = [(n, smallest_p_in_rounds(controls, n) if cycle.rounds else smallest_p(n, n)) for n in range(1, 100)]
    return next(n for n, p in least if n >= FEWEST_RUNS and p * 2 * tests < SIGNIFICANT)


def resolves_drift(moved: Effect, tests: int) -> bool:
    """Whether its runs can show that what an arm does not touch moved, in one of so many tests."""
    return moved.change is not None and moved.change.least_p * tests < SIGNIFICANT


def drift(stock: Units, treated: Units, targets: frozenset[str]) -> tuple[Effect, ...]:
    """How the spans moved that the arm has no reason to move, summed on each clock that has any."""
    names, found = untouched(targets), []
    for where in _CLOCKS:
        before, after = total(stock, names, where), total(treated, names, where)
        moved = None if before is None or after is None else change(before, after)
        if moved is not None:
            found.append(Effect(Quantity(UNTOUCHED, where), moved))
    return tuple(found)
