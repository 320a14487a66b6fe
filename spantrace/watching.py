"""A live server in windows: each is recorded by itself, and between two of them no hook is in force.

A recording lasts from one end of a window to the other only, is read from a folder of its own that goes with it, and
leaves nothing behind.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spantrace.capture import Capture, Held, Until
from spantrace.control import processes
from spantrace.errors import SpantraceError
from spantrace.interrupts import signals_held
from spantrace.journal import Journal
from spantrace.loading import load
from spantrace.ranks import of_chosen
from spantrace.recording import Header, Recording
from spantrace.sampling import every_for


@dataclass(frozen=True)
class Pace:
    """A window of `seconds` begins every `interval` seconds, `count` of them or without end.

    Spans are recorded in one run of cycles in `detail_every`; by default in as many as give enough cycles in detail, by
    what the window before held.
    """

    seconds: float
    interval: float
    count: int | None = None
    detail_every: int | None = None
    gpu: bool = True


@dataclass(frozen=True)
class Window:
    """What one window recorded, with spans in one run of cycles in `detail_every`, or `why` there is nothing to show.

    Hooks were in force for `hooked` seconds of every `interval`, and saw so many decode `cycles`.
    """

    recording: Recording | None
    why: str
    hooked: float
    interval: float
    detail_every: int
    cycles: int = 0

    @property
    def share(self) -> float:
        """The part of the time in which hooks are in force, from 0 to 1."""
        return self.hooked / max(self.hooked, self.interval)


def windows(
    place: Path, members: dict[int, str], pace: Pace, header: Callable[[dict[str, Any]], Header]
) -> Iterator[Window]:
    """Record `members` (pid to role, the engine last) window by window; `header` is made anew for the options of each.

    An idle server is waited for, and another recorder once the first window is there; a server that does not answer is
    a SpantraceError.
    """
    cycles = 0
    for number in range(pace.count) if pace.count else itertools.count():
        began = time.monotonic()
        every = pace.detail_every or every_for(cycles)
        try:
            window = _record(place, members, pace, every, header)
        except Held as error:
            if not number:
                raise
            window = Window(None, str(error), 0.0, pace.interval, every, cycles)
        cycles = window.cycles
        yield window
        if number + 1 != pace.count:
            time.sleep(max(0.0, began + pace.interval - time.monotonic()))


def _record(
    place: Path, members: dict[int, str], pace: Pace, every: int, header: Callable[[dict[str, Any]], Header]
) -> Window:
    """One window; a server that ended within it, or a hook that failed before any cycle, is a SpantraceError."""
    options: dict[str, Any] = {"warmup": 0, "nvtx": False, "seconds": pace.seconds, "detail_every": every}
    asked = {"nvtx": False, "gpu": pace.gpu, "detail_every": every}
    with (
        TemporaryDirectory(prefix="spantrace-") as folder,
        Journal(Path(folder) / "window", header(options), kept=False) as journal,
    ):
        capture = Capture(place, members, journal, asked)
        try:
            hooked = _run(capture, pace.seconds)
        except Held:
            raise
        except SpantraceError as error:
            raise _ended(place, members) or error from None
        if capture.failure and not capture.steps:
            raise capture.nothing("")
        recording, why = _read(journal, capture.steps, pace.seconds)
    return Window(recording, why, hooked, pace.interval, every, capture.cycles)


def _read(journal: Journal, steps: int, seconds: float) -> tuple[Recording | None, str]:
    """The window's recording, of its slowest rank, or why there is none."""
    if not steps:
        return None, f"the server is idle: no cycle in {seconds:g} s; waiting for one"
    try:
        return of_chosen(load(journal.part)), ""
    except SpantraceError:
        return None, f"no whole cycle in {seconds:g} s; choose a longer --window"


def _run(capture: Capture, seconds: float) -> float:
    """Record for so long, or until Ctrl-C, which passes on once the hooks are off; how many seconds they were on."""
    began, complete = time.monotonic(), False
    with capture:
        try:
            capture.run(Until(seconds=seconds))
        finally:
            with signals_held():
                complete = capture.stop()
    if not complete:
        raise SpantraceError(capture.note or "a process did not finish its recording")
    return time.monotonic() - began


def _ended(place: Path, members: Mapping[int, str]) -> SpantraceError | None:
    """That the server has ended, where one of its processes does not listen any more."""
    there = processes(place)
    gone = next((f"{role} process {pid}" for pid, role in members.items() if pid not in there), None)
    return None if gone is None else SpantraceError(f"the server has ended: its {gone} does not answer any more")
