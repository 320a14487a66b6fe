"""A campaign's plan out of TOML, flags or its own JSON; what it cannot mean is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spantrace.campaign.order import LEAST_CYCLES, MOST_CYCLES, MOST_REPEATS, ORDERS
from spantrace.campaign.plan import AGAIN, ALL, BUILT_IN, SERVE, STOCK, Arm, Plan
from spantrace.delays import LONGEST_NS
from spantrace.errors import SpantraceError
from spantrace.spans import SPAN_NAMES, WAITS
from spantrace.toml_tables import checked, parse_toml

LONGEST_NAME = 100
_LENGTHS = (
    ("repeats", 1, MOST_REPEATS), ("cycles", LEAST_CYCLES, MOST_CYCLES), ("warmup", 0, MOST_CYCLES),
)  # fmt: skip
_OWN: Mapping[str, type] = {
    "target": str, "order": str, "repeats": int, "warmup": int, "cycles": int, "contended": float, "gates": str,
    "restore": list, "serve": dict, "load": dict,
}  # fmt: skip
_ARM: Mapping[str, type] = {"name": str, "on": list, "environment": dict, "arguments": list, "delay": dict}
_SERVE: Mapping[str, type] = {"arguments": list, "environment": dict}
_LOAD: Mapping[str, type] = {
    "command": list, "prefix": int, "input": int, "output": int, "concurrency": int, "requests": int,
    "reset": bool,
}  # fmt: skip


def read(text: str) -> Plan:
    """A plan from its own `text`; ValueError where that is no JSON, SpantraceError for what a plan cannot mean."""
    given = checked(json.loads(text), {**_OWN, "built_in": dict, "arms": list}, "the plan")
    return _plan(given, _arms(given.pop("arms", [])))


def parse(text: str, read_gates: Callable[[str], str]) -> Plan:
    """A plan from TOML, and the text of the gates file that it names; SpantraceError for what it cannot mean."""
    table = parse_toml(text, "the plan")
    return from_table(table, read_gates(str(table["gates"])) if table.get("gates") else "")


def from_table(table: Mapping[str, Any], gates: str = "") -> Plan:
    """A plan from the tables of a TOML file; SpantraceError in one sentence for what it cannot mean."""
    known = {**_OWN, "optimize": list, "aa": bool, "leave-one-out": bool, "built-in": dict, "arm": list}
    given = checked(table, known, "the plan")
    own = _arms(given.pop("arm", []))
    optimize, restore = (_ids(names) for names in (given.pop("optimize", ()), given.get("restore", ())))
    if both := set(optimize) & set(restore):
        raise SpantraceError(f"{', '.join(sorted(both))} cannot be in optimize and in restore of the plan at once")
    without = given.pop("leave-one-out", True)
    generated = arms_of([*optimize, *restore], aa=given.pop("aa", True), leave_one_out=without)
    same = {key.replace("-", "_"): value for key, value in given.items()}
    return _plan({**same, "gates": gates}, generated + own)


def arms_of(optimizations: Sequence[str], *, aa: bool, leave_one_out: bool = True) -> tuple[Arm, ...]:
    """Stock, stock again, each optimization alone, all but each, and all of them; no set twice."""
    every = tuple(dict.fromkeys(map(str, optimizations)))
    arms = [Arm(STOCK), *([Arm(AGAIN)] if aa else [])]
    if len(every) > 1:
        arms += [Arm(name, (name,)) for name in every]
    if len(every) > 2 and leave_one_out:
        arms += [Arm(f"all but {name}", tuple(other for other in every if other != name)) for name in every]
    if every:
        arms.append(Arm(ALL if len(every) > 1 else every[0], every))
    return tuple(arms)


def _arms(tables: Sequence[object]) -> tuple[Arm, ...]:
    return tuple(
        _arm(checked(table, _ARM, f"arm {number} of the plan")) for number, table in enumerate(tables, start=1)
    )


def _arm(table: Mapping[str, Any]) -> Arm:
    if "name" not in table:
        raise SpantraceError("an arm of the plan has no name; give it one")
    lists = {key: read(table[key]) for key, read in (("on", _ids), ("arguments", _words)) if key in table}
    return Arm(table["name"], environment=_texts(table.get("environment", {})), delay=table.get("delay", {}), **lists)


def _words(given: Sequence[object]) -> tuple[str, ...]:
    return tuple(map(str, given))


def _ids(given: Sequence[object]) -> tuple[str, ...]:
    """Ids of optimizations, those of a set in place of its name."""
    import optimized

    return tuple(dict.fromkeys(optimized.members(_words(given))))


def _texts(table: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in table.items()}


def _plan(given: Mapping[str, Any], arms: tuple[Arm, ...]) -> Plan:
    serve = checked(given.get("serve", {}), _SERVE, "[serve]")
    if "environment" in serve:
        serve["environment"] = _texts(serve["environment"])
    load = checked(given.get("load", {}), _LOAD, "[load]")
    if wrong := [word for word in load.get("command", ()) if not isinstance(word, str)]:
        raise SpantraceError(f"command of [load] must be a list of texts; {wrong[0]!r} is none")
    restore = tuple(map(str, given.get("restore", ())))
    plan = Plan(arms, **{**given, "restore": restore, "serve": serve, "load": load})
    _check(plan)
    return plan


def _check(plan: Plan) -> None:
    names = [arm.name for arm in plan.arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SpantraceError(f"two arms of the plan are called {twice!r}; the names must differ")
    if names[:1] != [STOCK] or not set(names) - {STOCK, AGAIN}:
        raise SpantraceError("the plan has nothing to compare with stock; name optimizations or [[arm]]s")
    for arm in plan.arms:
        _check_arm(arm, plan.target)
    used = {BUILT_IN: {"built-in"}, SERVE: {"serve", "load"}}.get(plan.target, {"load"})
    given = {"built-in": plan.built_in, "serve": plan.serve, "load": plan.load}
    if idle := [name for name, table in given.items() if table and name not in used]:
        raise SpantraceError(f"[{idle[0]}] of the plan means nothing to the target {plan.target!r}")
    if plan.target == SERVE and not plan.serve.get("arguments"):
        raise SpantraceError("the target 'serve' needs [serve] with the arguments of vllm serve, the model first")
    if plan.order not in ORDERS:
        raise SpantraceError(f"the plan has no order {plan.order!r}; choose from {', '.join(ORDERS)}")
    for name, least, most in _LENGTHS:
        if not least <= (value := getattr(plan, name)) <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            raise SpantraceError(f"{name} of the plan must be {bound}, not {value}")
    if not 0.0 < plan.contended <= 1.0:
        raise SpantraceError(f"contended of the plan is a share of the CPUs above 0 and up to 1, not {plan.contended}")
    if plan.restore and plan.target == BUILT_IN:
        raise SpantraceError("the plan restores stock, which only a server's vLLM can have lost; leave restore out")
    plan.switched(plan.arms[0])
    plan.turns()


def _check_arm(arm: Arm, target: str) -> None:
    if not arm.name.strip() or not arm.name.isprintable() or len(arm.name) > LONGEST_NAME:
        raise SpantraceError(
            f"an arm of the plan is called {arm.name[:LONGEST_NAME]!r}; "
            f"a name has 1 to {LONGEST_NAME} characters that can be printed"
        )
    if (arm.name in (STOCK, AGAIN)) and arm.treatment:
        raise SpantraceError(f"arm {arm.name!r} of the plan is not stock; call it something else")
    if arm.name not in (STOCK, AGAIN) and not arm.treatment:
        raise SpantraceError(f"arm {arm.name!r} of the plan is stock in all; say what is on in it")
    if arm.restarts and target != SERVE:
        raise SpantraceError(f"arm {arm.name!r} of the plan needs a server of its own; the target must be 'serve'")
    if arm.delay:
        _check_delay(arm)


def _check_delay(arm: Arm) -> None:
    ((span, us), *others) = arm.delay.items()
    said = f"arm {arm.name!r} of the plan delays"
    if others:
        raise SpantraceError(f"{said} {len(arm.delay)} spans; an arm can delay one")
    if span not in SPAN_NAMES or span == "cycle":
        raise SpantraceError(f"{said} {span!r}, which is no span of the cycle")
    if span in WAITS:
        raise SpantraceError(f"{said} {span!r}, which is a wait and has no work to hold up; name what it waits for")
    number = isinstance(us, (int, float)) and not isinstance(us, bool)
    if not number or not 0.001 <= us <= LONGEST_NS / 1e3:
        raise SpantraceError(f"{said} by {us!r}; it must be 0.001 to {LONGEST_NS / 1e3:g} us")
