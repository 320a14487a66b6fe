"""What a campaign is to measure: its arms, their order and length, and on what; hashed by what it means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spantrace.campaign.order import ABBA, turns
from spantrace.sampling import every_for

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
    there are none. `restore` names fixes that the server's vLLM has by itself: an arm in which such a one is not on, as
    stock, is without it.
    """

    arms: tuple[Arm, ...]
    target: str = BUILT_IN
    order: str = ABBA
    repeats: int = 8
    warmup: int = 20
    cycles: int = 200
    contended: float = 0.25
    gates: str = ""
    restore: tuple[str, ...] = ()
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
        """Of how many runs of cycles one is recorded in detail, in all arms alike: in a server's, as by `record`.

        It is all where a span is held up, which a hook that is not in force does not do.
        """
        everything = self.target == BUILT_IN or any(arm.delay for arm in self.arms)
        return 1 if everything else every_for(self.cycles)

    @property
    def length(self) -> int:
        """Decode cycles of one window."""
        return self.warmup + self.cycles

    def switched(self, arm: Arm) -> list[str]:
        """The ids that are switched on in an arm: its optimizations, and what restores stock where a fix is not on."""
        import optimized

        chosen = [name for name in arm.on if name not in self.restore]
        return [*chosen, *optimized.with_stock((), [name for name in self.restore if name not in arm.on])]

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
