"""A vLLM server as a campaign's target: how a window is measured on it, and the one that runs already."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil

from spantrace.campaign.code import hash_of_sources, newest, own_sources, together, vllm_code
from spantrace.campaign.contention import Neighbours
from spantrace.campaign.holding import Holding
from spantrace.campaign.plan import Arm, Plan
from spantrace.campaign.running import Gone, Measured
from spantrace.campaign.store import Store, Window
from spantrace.capture import Capture, Until
from spantrace.control import ask
from spantrace.errors import SpantraceError
from spantrace.journal import Journal
from spantrace.vllm_adapter.live import check, refuse_undelayed, reset_prefix_cache, switch, switched_on
from spantrace.vllm_adapter.load import Load, RunningLoad
from spantrace.vllm_adapter.servers import Server, engine_and_workers, find, roles
from spantrace.vllm_adapter.targets import port_of

CYCLE_S, BENCH_S = 0.01, 20.0
"""What an estimate assumes of a cycle, and of the start of `vllm bench serve`."""
IDLE_S = 180.0
"""How long a load may take before its first cycle, or between two."""
FINISH_S = 1800.0
"""How long a load may take after the recording."""
_LOOK_S = 0.5


class ServerTarget(ABC):
    """What both kinds have in common: how a window of an arm is measured on a server that runs."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self._plan, self._place = plan, place
        self._load = Load(**{**plan.load, "command": tuple(plan.load.get("command", ()))})
        self._every = tuple(dict.fromkeys(name for arm in plan.arms for name in plan.switched(arm)))

    @abstractmethod
    def server(self, arm: Arm) -> Server:
        """The server on which the arm is to be measured, which answers."""

    def live(self, arm: Arm) -> list[str]:
        """Those of the arm's switches that are put on and off while its server runs."""
        return self._plan.switched(arm)

    def measure(self, arm: Arm, journal: Journal) -> Measured:
        """Switch, empty the prefix cache unless the load keeps it, record under load, and wait for its figures."""
        server = self.server(arm)
        on = self.live(arm)
        done = switch(server, on, [name for name in self._every if name not in on], self._place)
        refused = reset_prefix_cache(server, self._place) if self._load.any and self._load.reset else ""
        notes = [f"the prefix cache was not emptied: {refused}"] if refused else []
        if besides := [name for name in done.on if name not in self._every]:
            notes.append(f"on in every arm, stock too: {', '.join(besides)}")
        if not self._load.any:
            return Measured({}, tuple(notes), self._record(server, arm, journal, None))
        with RunningLoad(self._load, f"http://127.0.0.1:{server.port() or self.port()}") as load:
            others = self._record(server, arm, journal, load)
            return Measured(load.figures(FINISH_S), tuple(notes), others)

    @abstractmethod
    def port(self) -> int:
        """Where the server listens, for one whose command does not say it."""

    def seconds(self, windows: Sequence[Window]) -> float:
        """About how long these windows will take, by what is assumed of servers."""
        return len(windows) * (
            self._plan.length * CYCLE_S + (0.0 if self._load.command or not self._load.any else BENCH_S)
        )

    def _record(self, server: Server, arm: Arm, journal: Journal, load: RunningLoad | None) -> float:
        """Record one window; the share of the CPUs that others used from its first step to its last."""
        options = {"nvtx": False, "gpu": True, "detail_every": self._plan.detail_every, "delays": bool(arm.delay)}
        with Capture(self._place, roles(server), journal, options) as capture:
            neighbours = Neighbours([server.root])
            self._follow(capture, Holding(arm.delay, capture.delay), load, neighbours)
            others = neighbours.share()
            complete = capture.stop()
        if capture.note or not complete:
            raise SpantraceError(capture.note or "a process did not finish its recording")
        if capture.cycles < self._plan.length:
            if load is not None:
                load.figures(FINISH_S)
            raise SpantraceError(
                f"the load ended after {capture.cycles} of {self._plan.length} decode cycles; give it more requests"
            )
        return others

    def _follow(self, capture: Capture, holding: Holding, load: RunningLoad | None, neighbours: Neighbours) -> None:
        """Record until all cycles are there or the load has ended, the arm's span held up."""

        def look(cycles: int) -> None:
            if capture.steps:
                neighbours.look()

        last, seen = time.monotonic(), 0
        while capture.cycles < self._plan.length and not capture.note:
            holding.renew()
            capture.run(Until(self._plan.length, _LOOK_S), look)
            last, seen = (last, seen) if capture.steps == seen else (time.monotonic(), capture.steps)
            if load is not None and not load.running:
                break
            if time.monotonic() - last > IDLE_S:
                raise capture.nothing(f"no cycle in {IDLE_S:g} s: the server is idle")
        if not capture.note and capture.cycles >= self._plan.length:
            holding.end(self._plan.cycles)


class RunningServer(ServerTarget):
    """A server that somebody started, named as for `record`; afterwards it has on what it had on before.

    What that was is noted in the campaign's log before anything is switched, for the case that this process is killed.
    """

    def __init__(self, store: Store, place: Path) -> None:
        super().__init__(store.plan, place)
        self._store = store
        self._before: list[str] | None = None

    def __enter__(self) -> RunningServer:
        """SpantraceError where an arm's optimizations cannot be switched; nothing is changed."""
        found = self._found()
        if any(arm.delay for arm in self._plan.arms):
            refuse_undelayed(found, self._place)
        for arm in self._plan.arms:
            on = self._plan.switched(arm)
            check(found, on, [name for name in self._every if name not in on], self._place)
        self._before = self._store.left(found.root)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            return
        try:
            self._restore(self._found(), self._before)
        except SpantraceError:
            if kind is None:
                raise

    def server(self, arm: Arm) -> Server:
        """The running one; `Gone` where it is not there any more."""
        found = self._found()
        if self._before is None:
            self._before = switched_on(found, self._place)
            self._store.switched(found.root, self._before)
        return found

    def port(self) -> int:
        """That of the plan's target."""
        if self._plan.target.isdecimal():
            raise SpantraceError("the server's command does not tell its port; name the target by :PORT")
        return port_of(self._plan.target)

    def code(self, arm: Arm) -> str:
        """The hash of what the server imported: vLLM's sources and ours, with those of all that is on besides.

        `Gone` where ours were changed since it was started; where they cannot be seen from here it is of their place.
        """
        server = self._found()
        engine = engine_and_workers(server)[1]
        told = ask(self._place, engine.pid, {"type": "optimizations"})
        besides = [name for name in switched_on(server, self._place) if name not in self._every]
        own = own_sources([*self._plan.switched(arm), *besides], Path(told["own"])) if "own" in told else []
        _refuse_changed(own, engine.pid)
        vllm = vllm_code(Path(told["sources"]) if told.get("sources") else None, server.vllm)
        return together(hash_of_sources(own) if own else str(told.get("own")), vllm)

    def _found(self) -> Server:
        try:
            return find(self._plan.target, self._place)
        except SpantraceError as error:
            raise Gone(str(error)) from error

    def _restore(self, server: Server, before: list[str]) -> None:
        on, off = ([name for name in self._every if (name in before) is wanted] for wanted in (True, False))
        switch(server, on, off, self._place)
        self._store.restored()


def _refuse_changed(sources: Sequence[Path], process: int) -> None:
    """`Gone` where a file was changed after the process that may have imported it was started."""
    with contextlib.suppress(psutil.Error):
        if newest(sources) > psutil.Process(process).create_time():
            last = max(sources, key=lambda path: path.stat().st_mtime)
            raise Gone(f"the server was started before {last} was changed, and may run what was there then; restart it")
