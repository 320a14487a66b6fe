"""One recording in one process: wraps functions so that their calls become rows, and drains the rows.

Nothing here raises into the wrapped code: a probe that fails is counted, named and switched off.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from types import CodeType, FunctionType
from typing import Any

from spantrace.frames import Frame, plain_rows
from spantrace.gpu_clock import GpuClock
from spantrace.graph_spans import WIDTH
from spantrace.inside import Inside
from spantrace.ring import Ring, as_array
from spantrace.wrapping import LANE_SHIFT, Flag, Function, Wiring, rewrite, wrap

_MAIN = threading.main_thread().ident
"""The thread that runs an engine's or a worker's loop; its lane is 0."""


@dataclass(frozen=True)
class Site:
    """How one function is recorded: `row` is its index in the recording's list of sites, None for facts only.

    `in_draft` is the span that it is inside draft.propose, where that is not the one of its `name`. Where `when` is
    given, only calls while it is raised are recorded.
    """

    name: str
    row: int | None
    gpu: bool = False
    follows: bool = False
    threaded: bool = False
    before: Function | None = None
    after: Function | None = None
    in_draft: str | None = None
    when: Flag | None = None


@dataclass
class Recorder:
    """Rings, lanes and error counts of one recording; `gpu` is None where there is no GPU to time.

    With `delays` each span can be held up, or looked into.
    """

    gpu: GpuClock | None = None
    nvtx: bool = False
    delays: Inside | None = None
    rows: Ring = field(default_factory=Ring)
    facts: Ring = field(default_factory=lambda: Ring(1 << 15, width=1))
    errors: int = 0
    first_error: str = ""
    _lanes: dict[int, int] = field(default_factory=dict)

    def wrap(self, function: Function, site: Site) -> Function:
        """A stand-in for `function` that records each call as `site` says."""
        return wrap(function, self._wiring(site))

    def rewrite(self, function: FunctionType, site: Site) -> CodeType:
        """Code with which `function` records each of its own calls as `site` says."""
        return rewrite(function, self._wiring(site))

    def _wiring(self, site: Site) -> Wiring:
        push, pop = self._nvtx(site.name) if self.nvtx and site.row is not None else (None, None)
        more: dict[str, Any] = {}
        if site.gpu and self.gpu:
            opening = self.gpu.follow if site.follows else self.gpu.open
            more = {"timing": self.gpu.timing, "open": opening, "close": self.gpu.close}
        if self.delays:
            due = self.delays.place(site.name, site.in_draft, bool(more))
            more |= {"due": due, "hold": self.delays.hold}
        return Wiring(
            row=site.row,
            put=self.rows.put,
            clock=time.perf_counter_ns,
            failed=self._probe_failed,
            alive=Flag([True]),
            before=site.before,
            after=site.after,
            push=push,
            pop=pop,
            lane=self._lane if site.threaded else None,
            when=site.when,
            **more,
        )

    def fact(self, *values: Any) -> None:
        """Keep one fact about a cycle: its kind, then plain numbers and lists of numbers."""
        self.facts.put((values,))

    def failed(self, error: Exception) -> None:
        """Count an error of the instrumentation and remember the first."""
        self.errors += 1
        self.first_error = self.first_error or f"{type(error).__name__}: {error}"

    def _probe_failed(self, error: Exception, alive: Flag) -> None:
        """Count a probe's failure and switch the probe off; a caller that lost this race counts once more."""
        alive.clear()
        self.failed(error)

    def drain(self) -> Iterator[Frame]:
        """Take out what was recorded since the last call, as frames; called by one thread only."""
        if rows := self.rows.drain():
            yield {"type": "rows", **plain_rows(as_array(rows))}
        if facts := self.facts.drain():
            yield {"type": "facts", "facts": facts}
        if self.gpu and (spans := self.gpu.spans()):
            yield {"type": "gpu", **plain_rows(as_array([*chain.from_iterable(spans)], 5))}
        if self.gpu and self.gpu.graphs and (parts := self.gpu.graphs.drain()):
            yield {"type": "parts", **plain_rows(as_array(parts, WIDTH))}

    def health(self) -> Frame:
        """Losses and errors so far."""
        gpu = self.gpu
        return {
            "lost": self.rows.lost() + self.facts.lost(),
            "hook_errors": self.errors + (gpu.errors if gpu else 0),
            "first_error": self.first_error or (gpu.first_error if gpu else ""),
            "gpu_skipped": gpu.skipped if gpu else 0,
            "gpu_records": gpu.records() if gpu else 0,
            "gpu_cycles": gpu.cycles if gpu else 0,
            "threads": {str(lane): name for lane, name in self._thread_names()},
        }

    def _lane(self) -> int:
        ident = threading.get_ident()
        if ident == _MAIN:
            return 0
        return self._lanes.setdefault(ident, len(self._lanes) + 1) << LANE_SHIFT

    def _thread_names(self) -> Iterator[tuple[int, str]]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, lane in list(self._lanes.items()):
            yield lane, names.get(ident, f"thread {ident}")

    @staticmethod
    def _nvtx(name: str) -> tuple[Callable[[], object], Callable[[], object]]:
        import nvtx

        domain = nvtx.get_domain("spantrace")
        return functools.partial(domain.push_range, domain.get_event_attributes(message=name)), domain.pop_range


def cost_of_a_span(calls: int = 100, rounds: int = 25) -> float:
    """Nanoseconds that a wrapper adds to one call here and now: the median of `rounds` differences.

    Caches are warm in this loop: in a server's own loop a span costs one to a few microseconds.
    """

    def nothing(argument: object) -> None:
        return None

    wrapped = Recorder(rows=Ring(calls)).wrap(nothing, Site("calibration", 0))
    return median(_time(wrapped, calls) - _time(nothing, calls) for _ in range(rounds))


def _time(function: Function, calls: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(calls):
        function(None)
    return (time.perf_counter_ns() - begin) / calls
