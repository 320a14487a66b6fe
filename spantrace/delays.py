"""Holds a span up on purpose, by a known time and once a cycle, to see whether the cycle gets longer by as much.

On the thread of the engine's or worker's loop a held span is busy; on another one it sleeps, so that what is seen is
the span's place in the cycle and not the share that two threads have of one interpreter. Nothing raises into a span.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from spantrace.frames import Frame
from spantrace.spans import Track
from spantrace.wrapping import Flag

LONGEST_NS = 5_000_000
"""The most by which one cycle is held up."""
LONGEST_S = 60.0
"""For how long, at most, a delay stays without being asked for anew."""
MOST_SHARE = 0.5
"""The most of the time since the first delay that may go into delays."""
ENGINE_SPANS = frozenset({"cycle", "schedule", "output.update", "output.emit"})
"""Spans of the engine's own loop: for them a cycle begins with the loop's turn, for others with the worker's step."""


@dataclass(frozen=True)
class Held:
    """What a delay did: `cycles` began while it was in force, it held `times`, `ns` in all; `refused` by a limit."""

    cycles: int = 0
    times: int = 0
    ns: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Place:
    """A function that can be held up: what it is outside and inside of draft.propose, and whether it launches work."""

    span: str
    in_draft: str | None
    gpu: bool
    due: Flag


class Delays:
    """The delays of one recording in one process, one span's at a time; `spin(ns)` keeps the GPU's stream busy."""

    def __init__(self, spin: Callable[[int], None] | None = None) -> None:
        self._spin = spin
        self._places: list[Place] = []
        self._outside: list[Flag] = []
        self._drafted: list[Flag] = []
        self._inside: list[Flag] = []
        self._span, self._ns, self._track = "", 0, Track.HOST
        self._until = self._first = self._spent = 0
        self._cycles = self._times = self._held_ns = self._refused = 0

    def place(self, span: str, in_draft: str | None = None, gpu: bool = False) -> Flag:
        """A flag that is raised while the function of these names is to be held up."""
        self._places.append(Place(span, in_draft, gpu, Flag()))
        return self._places[-1].due

    def begin(self, span: str, ns: int, seconds: float, track: Track = Track.HOST) -> int:
        """Hold `span` up by `ns` in each cycle from the next one on; returns how many functions that concerns."""
        self.end()
        found = [one for one in self._places if span in (one.span, one.in_draft) and (one.gpu or track is Track.HOST)]
        if track is Track.GPU and self._spin is None:
            found = []
        now = time.perf_counter_ns()
        self._first = self._first or now
        self._until = now + int(min(seconds, LONGEST_S) * 1e9)
        self._ns, self._track = min(ns, LONGEST_NS), track
        self._inside = [one.due for one in found if span == (one.in_draft or one.span)]
        self._drafted = [one.due for one in found if one.in_draft not in (None, span)]
        self._outside = [one.due for one in found if one.span == span]
        self._span = span if found else ""
        return len(found)

    def end(self) -> Held:
        """Hold nothing up any more; what the last delay did."""
        self._span = ""
        for one in self._places:
            one.due.clear()
        held = Held(self._cycles, self._times, self._held_ns, self._refused)
        self._cycles = self._times = self._held_ns = self._refused = 0
        return held

    def answer(self, request: Frame) -> Frame:
        """Hold up what a request names from the next cycle on, nothing where it is for 0 ns; what the last one did."""
        held, places = asdict(self.end()), 0
        if request["ns"]:
            track = Track[str(request["track"]).upper()]
            places = self.begin(request["span"], request["ns"], request["seconds"], track)
        return {"type": "delayed", "places": places, "at_ns": time.perf_counter_ns(), "held": held}

    def new_cycle(self, turn: bool | None = None) -> None:
        """A cycle begins: by the loop's `turn`, by a worker's step, or, where there is but one of these, by None."""
        if self._span and (turn is None or turn is (self._span in ENGINE_SPANS)):
            self._cycles += 1
            for due in self._outside:
                due.append(True)

    def enter_draft(self, *_: object) -> None:
        """draft.propose begins, in which some functions are other spans; called with that call's arguments."""
        if self._span:
            for due in self._drafted:
                due.clear()
            for due in self._inside:
                due.append(True)

    def hold(self) -> None:
        """Called inside a function whose flag is raised: hold it up, unless a limit is reached."""
        for due in (*self._outside, *self._inside):
            due.clear()
        if not self._span:
            return
        began = time.perf_counter_ns()
        if began >= self._until or self._spent + self._ns > MOST_SHARE * (began - self._first) + LONGEST_NS:
            self._refused += 1
            return
        try:
            took = self._launch() if self._track is Track.GPU else self._wait(began)
        except Exception:
            self._refused += 1
            return
        self._times += 1
        self._held_ns += took
        self._spent += took

    def _launch(self) -> int:
        assert self._spin is not None
        self._spin(self._ns)
        return self._ns

    def _wait(self, began: int) -> int:
        clock, end = time.perf_counter_ns, began + self._ns
        if threading.get_ident() == threading.main_thread().ident:
            while clock() < end:
                pass
        else:
            time.sleep(self._ns / 1e9)
        return clock() - began


def calibrated_spin() -> Callable[[int], None]:
    """Keeps this thread's current stream busy for so many nanoseconds, by a kernel that was timed on a side stream."""
    import torch

    cycles, times = 2_000_000, []
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(cycles)
            end.record()
            while not end.query():
                time.sleep(0.0003)
            times.append(begin.elapsed_time(end) * 1e6)
    per_ns = cycles / sorted(times)[1]

    def spin(ns: int) -> None:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda._sleep(round(ns * per_ns))

    return spin
