"""A vLLM server that a campaign starts, anew where an arm needs another one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import optimized
from spantrace.campaign.code import own_code, together, vllm_code
from spantrace.campaign.plan import Arm, Plan
from spantrace.campaign.running import Gone
from spantrace.campaign.server import ServerTarget
from spantrace.campaign.store import Window
from spantrace.errors import SpantraceError
from spantrace.vllm_adapter.launch import choose, installed_version
from spantrace.vllm_adapter.servers import Server, engine_and_workers, find
from spantrace.vllm_adapter.started import StartedServer, port_of_arguments, refuse_taken

START_S = 90.0
"""What an estimate assumes of a server's start."""


class ServedServer(ServerTarget):
    """`vllm serve` with the plan's arguments; arms that differ in more than live switches each need a start."""

    def __init__(self, plan: Plan, place: Path, log: Path) -> None:
        super().__init__(plan, place)
        self._log = log
        self._started: StartedServer | None = None
        self._of: object = None
        self._codes: dict[str, str] = {}

    def __enter__(self) -> ServedServer:
        """SpantraceError where this environment's vLLM cannot have one of the optimizations, or the port is taken."""
        choose(",".join(self._every) or "none")
        refuse_taken(self.port())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def server(self, arm: Arm) -> Server:
        """The one that runs if it is what the arm needs, else a new one."""
        if self._of != self._needs(arm) or not self._usable():
            self._stop()
            environment = {**self._plan.serve.get("environment", {}), **arm.environment}
            environment["SPANTRACE_DIR"] = str(self._place)
            delays = any(one.delay for one in self._plan.arms)
            at_start = self._at_start(arm)
            now = self._code(arm)
            if now != self._codes.setdefault(arm.name, now):
                raise Gone("the code has changed since the campaign began; start another one (-o)")
            self._started = StartedServer(self._arguments(arm), environment, at_start, self._log, allow_delays=delays)
            self._started.wait_ready()
            self._of = self._needs(arm)
        return find(f":{self.port()}", self._place)

    def live(self, arm: Arm) -> list[str]:
        """Those that can be switched while a server runs; it is started with the others."""
        vllm = installed_version()
        return [name for name in self._plan.switched(arm) if optimized.discover()[name].is_live(vllm)]

    def port(self) -> int:
        """That of the server that runs, or of the plan's arguments."""
        return self._started.port if self._started else port_of_arguments(self._arguments(self._plan.arms[0]))

    def seconds(self, windows: Sequence[Window]) -> float:
        """As above, and what the starts take."""
        needs = [self._needs(window.arm) for window in windows]
        starts = sum(one != before for before, one in zip([None, *needs], needs, strict=False))
        return super().seconds(windows) + starts * START_S

    def code(self, arm: Arm) -> str:
        """The hash of our sources and of this environment's vLLM, as they are when it is first asked for."""
        return self._codes.setdefault(arm.name, self._code(arm))

    def _code(self, arm: Arm) -> str:
        spec = find_spec("vllm")
        package = Path(spec.origin).parents[1] if spec and spec.origin else None
        return together(own_code(self._plan.switched(arm)), vllm_code(package, sys.version), repr(self._needs(arm)))

    def _arguments(self, arm: Arm) -> list[str]:
        return [*map(str, self._plan.serve["arguments"]), *arm.arguments]

    def _needs(self, arm: Arm) -> tuple[object, ...]:
        """What makes one server differ from another that is started."""
        return tuple(self._arguments(arm)), tuple(sorted(arm.environment.items())), tuple(self._at_start(arm))

    def _at_start(self, arm: Arm) -> list[str]:
        """Those that its server is started with."""
        return [name for name in self._plan.switched(arm) if name not in self.live(arm)]

    def _usable(self) -> bool:
        """Whether it lives, its engine too: the API server outlives that for a while."""
        if (started := self._started) is None or not started.alive:
            return False
        try:
            engine_and_workers(find(f":{started.port}", self._place))
        except SpantraceError:
            return False
        return True

    def _stop(self) -> None:
        if self._started is not None:
            self._started.stop()
            self._started = None
