"""Gates, written down before a run and judged after it: PASS, FAIL, or INCONCLUSIVE with the reason.

A file of gates is TOML; what a check may say is told in `analyzers.gate_language`:

    gates = ["target.metadata.host <= 10% of base", {check = "itl < -4%", arm = "all"}]
    constants = {block = 528}

The figure's whole 95% interval decides: PASS where it lies in the region, FAIL where it lies outside, INCONCLUSIVE
where it holds the bound. A gate that asks for a change smaller than equal code shows in the A/A arm is INCONCLUSIVE
too. One that allows base as it is (`cycle <= base`, `<= 100% of base`, `< 0%`, `<= 5%`: no regression) asks for none,
so that its interval alone decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite

from analyzers.arms import Arm, Lost
from analyzers.attribution import STOCK, STOCK_AGAIN, Attribution
from analyzers.changes import Change
from analyzers.gate_language import Check, parse_check
from analyzers.quantities import ACCEPTANCE
from analyzers.statistics import FEWEST_RUNS, Estimate
from spantrace.errors import EXIT_GATE_FAILED, EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.tables import many
from spantrace.toml_tables import checked, parse_toml

TOGETHER = "all"


class Outcome(Enum):
    """What became of a gate."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Gate:
    """One check, as written and as read; `arm` is the one that must pass it, None for all optimizations together."""

    text: str
    check: Check
    arm: str | None


@dataclass(frozen=True)
class Gates:
    """Gates in the file's order; `hash` is the SHA-256 of the text that they were read from."""

    gates: tuple[Gate, ...]
    hash: str


@dataclass(frozen=True)
class Judged:
    """A gate with the arm that it was judged on, its outcome and the reason, which quotes the figure."""

    gate: Gate
    arm: str
    outcome: Outcome
    reason: str


def parse(text: str) -> Gates:
    """Read a gates file; an unknown key, an unreadable check or an impossible gate is an error of one sentence."""
    given = checked(parse_toml(text, "the gates file"), {"gates": list, "constants": dict}, "the gates file")
    constants = given.get("constants", {})
    checked(constants, dict.fromkeys(constants, float), "the constants of the gates file")
    if endless := [name for name, value in constants.items() if not isfinite(value)]:
        raise SpantraceError(f"constant {endless[0]!r} of the gates file is no finite number")
    gates = tuple(_gate(one, number, constants) for number, one in enumerate(given.get("gates", []), start=1))
    if not gates:
        raise SpantraceError('the gates file holds no gate; write gates = ["cycle < -4%"]')
    _refuse_contradictions(gates)
    return Gates(gates, hashlib.sha256(text.encode()).hexdigest())


def _gate(one: object, number: int, constants: dict[str, float]) -> Gate:
    table = {"check": one} if isinstance(one, str) else one
    known = checked(table, {"check": str, "arm": str}, f"gate {number}")
    if "check" not in known:
        raise SpantraceError(f"gate {number} has no check")
    return Gate(known["check"], parse_check(known["check"], constants), known.get("arm"))


def _refuse_contradictions(gates: Sequence[Gate]) -> None:
    for index, one in enumerate(gates):
        for other in gates[:index]:
            if one.arm == other.arm and one.check.excludes(other.check):
                raise SpantraceError(f"gates {other.text!r} and {one.text!r} are impossible together")


def check_arms(gates: Gates, arms: Sequence[str]) -> None:
    """Raise SpantraceError where a gate names no arm of the plan, or no run of its arm can pass all its gates; call it
    before the first arm."""
    treated = [name for name in arms if name not in (STOCK, STOCK_AGAIN)]
    _refuse_contradictions([replace(gate, arm=_arm_of(gate, treated)) for gate in gates.gates])


def _arm_of(gate: Gate, treated: Sequence[str]) -> str:
    if gate.arm is not None:
        if gate.arm not in treated:
            raise SpantraceError(f"gate {gate.text!r} is for arm {gate.arm!r}; the arms are {', '.join(treated)}")
        return gate.arm
    if TOGETHER not in treated and len(treated) != 1:
        raise SpantraceError(f"gate {gate.text!r} needs an arm, one of {', '.join(treated)}: "
                             'write {check = "...", arm = "..."}')  # fmt: skip
    return TOGETHER if TOGETHER in treated else treated[0]


def judge(gates: Gates, found: Attribution) -> tuple[Judged, ...]:
    """Judge every gate on the whole interval of its figure, and on what the A/A arm shows to be noise."""
    arms: dict[str, Arm | Lost] = {arm.name: arm for arm in found.arms if arm is not found.again}
    arms |= {lost.name: lost for lost in found.lost if lost.name not in (STOCK, STOCK_AGAIN)}
    chosen = [(gate, _arm_of(gate, list(arms))) for gate in gates.gates]
    return tuple(Judged(gate, name, *_judge(gate.check, arms[name], found.again)) for gate, name in chosen)


def exit_code(judged: Sequence[Judged]) -> int:
    """0 where all pass, 1 where one fails, else 3."""
    outcomes = {one.outcome for one in judged}
    if Outcome.FAIL in outcomes:
        return EXIT_GATE_FAILED
    return EXIT_NOT_COMPARABLE if Outcome.INCONCLUSIVE in outcomes else 0


def _judge(check: Check, arm: Arm | Lost, again: Arm | None) -> tuple[Outcome, str]:
    unclear = Outcome.INCONCLUSIVE
    if isinstance(arm, Lost):
        return unclear, f"{arm.name} {arm.why}"
    if arm.never_fired:
        return unclear, f"{' and '.join(arm.silent)} never fired"
    change = _change(check, arm)
    if change is None:
        return unclear, _missing(check, arm)
    figure = _figure(check, change)
    if figure is None:
        return unclear, f"{check.quantity} is 0 in a run, so that it has no relative change"
    shown = _quoted(check, figure)
    if figure.low is None or figure.high is None:
        return unclear, f"{shown}: not enough, {many(figure.n, 'run')} an arm; an interval needs {FEWEST_RUNS}"
    noise = _noise(check, figure, again)
    if not check.allows_base and noise is not None and (width := _width(check, figure)) < noise:
        return unclear, f"{shown}: {_narrow(check, width)} is less than the A/A interval, +-{_written(check, noise)}"
    note = "" if noise is not None else ", no A/A to hold it against"
    if check.holds(figure.low, figure.high):
        return Outcome.PASS, shown + note
    if check.fails(figure.low, figure.high):
        return Outcome.FAIL, shown + note
    return unclear, f"{shown}: the interval holds the bound"


def _missing(check: Check, arm: Arm) -> str:
    """Where a quantity has no value, and where one could have come from."""
    effect = arm.effect(check.quantity)
    where = "any arm" if effect is None else "stock" if effect.absent == "stock" else f"arm {arm.name}"
    of_load = check.quantity.where == "run" and check.quantity.name != ACCEPTANCE
    source = "; it comes from what a campaign's load measures" if of_load else ""
    return f"{check.quantity} has no value in {where}{source}"


def _change(check: Check, arm: Arm) -> Change | None:
    effect = arm.effect(check.quantity)
    return None if effect is None else effect.change


def _figure(check: Check, change: Change) -> Estimate | None:
    return {"relative": change.relative, "difference": change.difference, "value": change.b}[check.figure]


def _noise(check: Check, figure: Estimate, again: Arm | None) -> float | None:
    """How far from 0 the interval of equal code reaches, in the unit of the figure; of a value, its own part."""
    change = None if again is None else _change(check, again)
    if change is None:
        return None
    noise = change.difference if check.figure == "difference" or change.relative is None else change.relative
    if noise.low is None or noise.high is None:
        return None
    scale = abs(figure.value) if check.figure == "value" and noise is change.relative else 1.0
    return max(-noise.low, noise.high) * scale


def _width(check: Check, figure: Estimate) -> float:
    """What a gate leaves for noise: the +- of an equality, the change that it asks for, the distance from a bound."""
    if check.within is not None:
        return check.within
    return abs(figure.value - check.bound) if check.figure == "value" else abs(check.bound)


def _narrow(check: Check, width: float) -> str:
    if check.within is not None:
        return f"+-{_written(check, width)}"
    what = "its distance from the bound" if check.figure == "value" else "the change asked for"
    return f"{what}, {_written(check, width)},"


def _written(check: Check, value: float, signed: bool = False) -> str:
    sign, unit, scale = "+" if signed else "", "" if check.counted else " ms", 1
    decimals = 3 if abs(value) < 10 else 1
    if check.figure == "relative":
        unit, scale, decimals = "%", 100, 1 if abs(value) >= 0.01 else 2
    shown = value * scale
    least = shown and abs(shown) < 10**-decimals / 2  # a bound may be so small: not 0.00% for 0.001%
    return f"{shown:{sign}.1g}{unit}" if least else f"{shown:{sign}.{decimals}f}{unit}"


def _quoted(check: Check, figure: Estimate) -> str:
    signed = check.figure != "value"
    quoted = _written(check, figure.value, signed)
    if figure.low is None or figure.high is None:
        return quoted
    return f"{quoted} (95% interval {_written(check, figure.low, signed)} .. {_written(check, figure.high, signed)})"
