"""What a campaign is to measure: its arms, their order and length, and on what; read from TOML, checked and hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spantrace.campaign.order import ABBA, ORDERS, turns
from spantrace.delays import LONGEST_NS
from spantrace.errors import SpantraceError
from spantrace.spans import SPAN_NAMES
from spantrace.toml_tables import checked, parse_toml

STOCK, AGAIN, ALL = "stock", "stock again", "all"
BUILT_IN, SERVE = "built-in", "serve"


@dataclass(frozen=True)
class Arm:
    """What differs from stock in one arm: optimizations that are on, `environment` and `arguments` of its server.

    `delay` holds a host span up by so many microseconds in each cycle: a known answer.
    """

    name: str
    on: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    delay: Mapping[str, float] = field(default_factory=dict)

    @property
    def treatment(self) -> frozenset[str]:
        """The optimizations that are on, and the arm's own name where it differs otherwise."""
        return frozenset(self.on) | (frozenset({self.name}) if self.restarts or self.delay else frozenset())

    @property
    def restarts(self) -> bool:
        """Whether the arm needs a server of its own."""
        return bool(self.environment or self.arguments)


@dataclass(frozen=True)
class Plan:
    """A whole campaign; `arms` begin with stock, and with stock again unless A/A was refused.

    A window warms up for `warmup` steady cycles and records `cycles` decode cycles, `repeats` times for each arm. It
    is flagged as contended where other processes used at least the share `contended` of the CPUs, or used its GPU.
    `built_in` holds options of the built-in cycle, `serve` arguments and environment of a server to start, `load` what
    to put on a server. A target that is neither names a server that runs. `gates` is the text of the gates, empty where
    there are none.
    """

    arms: tuple[Arm, ...]
    target: str = BUILT_IN
    order: str = ABBA
    repeats: int = 8
    warmup: int = 20
    cycles: int = 200
    contended: float = 0.25
    gates: str = ""
    built_in: Mapping[str, Any] = field(default_factory=dict)
    serve: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """Of all that the plan says, however its file looks; empty parts do not count, so versions may add some."""
        said = json.dumps(_without_empty(asdict(self)), sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()

    @property
    def detail_every(self) -> int:
        """Of how many runs of cycles one is recorded in detail: in a server's, as by `record`."""
        return 1 if self.target == BUILT_IN else 5

    @property
    def length(self) -> int:
        """Decode cycles of one window."""
        return self.warmup + self.cycles

    def turns(self) -> list[Arm]:
        """The arm of every window, in order."""
        return [self.arms[index] for index in turns(len(self.arms), self.repeats, self.order)]

    def text(self) -> str:
        """The plan as JSON, which `read` takes back."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item not in ({}, (), [], "")}
    return [_without_empty(item) for item in value] if isinstance(value, (list, tuple)) else value


def read(text: str) -> Plan:
    """A plan from its own `text`."""
    whole = json.loads(text)
    arms = tuple(_arm(arm) for arm in whole.pop("arms"))
    return Plan(arms, **whole)


def parse(text: str, read_gates: Callable[[str], str]) -> Plan:
    """A plan from TOML, and the text of the gates file that it names; SpantraceError for what it cannot mean."""
    table = parse_toml(text, "the plan")
    return from_table(table, read_gates(str(table["gates"])) if table.get("gates") else "")


def from_table(table: Mapping[str, Any], gates: str = "") -> Plan:
    """A plan from the tables of a TOML file; SpantraceError in one sentence for what it cannot mean."""
    known = {
        "target": str, "order": str, "repeats": int, "warmup": int, "cycles": int, "contended": float,
        "optimize": list, "aa": bool, "gates": str, "built-in": dict, "arm": list, "serve": dict, "load": dict,
    }  # fmt: skip
    given = checked(table, known, "the plan")
    own = tuple(_arm(checked(arm, _ARM_KEYS, f"arm {number} of the plan")) for number, arm in
                enumerate(given.pop("arm", []), start=1))  # fmt: skip
    generated = arms_of(given.pop("optimize", []), aa=given.pop("aa", True))
    given.pop("gates", None)
    same = {key.replace("-", "_"): value for key, value in given.items()}
    checked(given.get("serve", {}), {"arguments": list, "environment": dict}, "[serve]")
    checked(given.get("load", {}), _LOAD_KEYS, "[load]")
    plan = Plan(generated + own, gates=gates, **same)
    _check(plan)
    return plan


def arms_of(optimizations: Sequence[str], *, aa: bool) -> tuple[Arm, ...]:
    """Stock, stock again, each optimization alone, all but each, and all of them; no set twice."""
    every = tuple(dict.fromkeys(map(str, optimizations)))
    arms = [Arm(STOCK), *([Arm(AGAIN)] if aa else [])]
    if len(every) > 1:
        arms += [Arm(name, (name,)) for name in every]
    if len(every) > 2:
        arms += [Arm(f"all but {name}", tuple(other for other in every if other != name)) for name in every]
    if every:
        arms.append(Arm(ALL if len(every) > 1 else every[0], every))
    return tuple(arms)


_LOAD_KEYS: Mapping[str, type] = {
    "command": list, "prefix": int, "input": int, "output": int, "concurrency": int, "requests": int,
}  # fmt: skip
_ARM_KEYS: Mapping[str, type] = {"name": str, "on": list, "environment": dict, "arguments": list,
                                        "delay": dict}  # fmt: skip


def _arm(table: Mapping[str, Any]) -> Arm:
    if "name" not in table:
        raise SpantraceError("an arm of the plan has no name; give it one")
    lists = {key: tuple(map(str, table[key])) for key in ("on", "arguments") if key in table}
    environment = {str(key): str(value) for key, value in table.get("environment", {}).items()}
    return Arm(table["name"], environment=environment, delay=table.get("delay", {}), **lists)


def _check(plan: Plan) -> None:
    names = [arm.name for arm in plan.arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SpantraceError(f"two arms of the plan are called {twice!r}; the names must differ")
    if len(names) < 2:
        raise SpantraceError("the plan has nothing to compare with stock; name optimizations or [[arm]]s")
    for arm in plan.arms:
        if arm.name not in (STOCK, AGAIN) and not arm.treatment:
            raise SpantraceError(f"arm {arm.name!r} of the plan is stock in all; say what is on in it")
        if arm.restarts and plan.target != SERVE:
            raise SpantraceError(f"arm {arm.name!r} of the plan needs a server of its own; the target must be 'serve'")
        _check_delay(arm)
    used = {BUILT_IN: {"built-in"}, SERVE: {"serve", "load"}}.get(plan.target, {"load"})
    given = {"built-in": plan.built_in, "serve": plan.serve, "load": plan.load}
    if idle := [name for name, table in given.items() if table and name not in used]:
        raise SpantraceError(f"[{idle[0]}] of the plan means nothing to the target {plan.target!r}")
    if plan.target == SERVE and not plan.serve.get("arguments"):
        raise SpantraceError("the target 'serve' needs [serve] with the arguments of vllm serve, the model first")
    if plan.order not in ORDERS:
        raise SpantraceError(f"the plan has no order {plan.order!r}; choose from {', '.join(ORDERS)}")
    for name, least in (("repeats", 1), ("cycles", 1), ("warmup", 0)):
        if getattr(plan, name) < least:
            raise SpantraceError(f"{name} of the plan must be at least {least}, not {getattr(plan, name)}")
    if not 0.0 < plan.contended <= 1.0:
        raise SpantraceError(f"contended of the plan is a share of the CPUs above 0 and up to 1, not {plan.contended}")
    plan.turns()


def _check_delay(arm: Arm) -> None:
    if not arm.delay:
        return
    ((span, us), *others) = arm.delay.items()
    if others:
        raise SpantraceError(f"arm {arm.name!r} of the plan delays {len(arm.delay)} spans; an arm can delay one")
    if span not in SPAN_NAMES or span == "cycle":
        raise SpantraceError(f"arm {arm.name!r} of the plan delays {span!r}, which is no span of the cycle")
    if not isinstance(us, (int, float)) or not 0 < us <= LONGEST_NS / 1e3:
        raise SpantraceError(
            f"arm {arm.name!r} of the plan delays by {us!r}; up to {LONGEST_NS / 1e3:g} us are the most"
        )
