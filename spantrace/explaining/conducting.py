"""The windows in which a span is explained: measured, sampled, traced, measured again; never two at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.explaining.answering import BEGIN_KERNELS, BEGIN_STACKS, END_KERNELS, END_STACKS
from spantrace.explaining.within import SpanStacks, Window, within
from spantrace.frames import Frame
from spantrace.recording import Recording
from spantrace.spans import SPAN_ID, SPAN_NAMES, Kind, Track

MEASURED = 50
"""Decode cycles that are measured without any profiler, before and after the windows that have one."""
SAMPLED = 50
"""Decode cycles of a window of stacks."""
MARGIN = 2
"""Cycles beside those of a kernel window that may be incomplete in it."""


class Refused(SpantraceError):
    """A process does not let itself be looked into; the sentence says why."""


@dataclass(frozen=True)
class Design:
    """What to explain of `span`: its stacks by at least `samples` within `seconds`, its kernels in so many `cycles`."""

    span: str
    host: bool = True
    gpu: bool = True
    samples: int = 500
    seconds: float = 30.0
    cycles: int = 8

    def __post_init__(self) -> None:
        if self.span not in SPAN_NAMES:
            raise SpantraceError(f"no span is called {self.span!r}; choose from {', '.join(SPAN_NAMES)}")


class Subject(Protocol):
    """What is explained: a server that is being recorded, or the built-in cycle."""

    def run(self, cycles: int) -> None:
        """Let so many decode cycles pass."""

    def ask(self, request: Frame) -> list[Frame]:
        """Ask each process; their answers once what was asked for is in force."""

    def recording(self) -> Recording:
        """What was recorded so far."""


@dataclass(frozen=True)
class Explained:
    """The measured windows and those with a profiler; `stacks` is None where the host was not asked for.

    `kernels` are the window of the kernels and each process's answer, or why these were refused; None where the GPU
    was not asked for.
    """

    before: Window
    after: Window
    stacks: SpanStacks | None
    kernels: tuple[Window, list[Frame]] | str | None


def conduct(design: Design, subject: Subject, progress: Callable[[int], None] = lambda samples: None) -> Explained:
    """Run all windows; SpantraceError where another profiler is at work or the span does not run."""
    before = _measured(subject)
    _refuse_absent(design.span, subject.recording())
    stacks = _sampled(design, subject, progress) if design.host else None
    kernels: tuple[Window, list[Frame]] | str | None = None
    try:
        kernels = _traced(design, subject) if design.gpu else None
    except Refused as refused:
        if not design.host:
            raise
        kernels = str(refused)
    return Explained(before, _measured(subject), stacks, kernels)


def _measured(subject: Subject) -> Window:
    begin = time.perf_counter_ns()
    subject.run(MEASURED)
    return begin, time.perf_counter_ns()


def _refuse_absent(span: str, recording: Recording) -> None:
    """SpantraceError where no steady cycle so far has the span."""
    steady, spans = recording.cycles.kind == Kind.STEADY, recording.spans
    ran = spans.name[(spans.track == Track.HOST) & steady[spans.cycle]]
    if not steady.any():
        raise SpantraceError("no steady decode cycle came; put more load on it", EXIT_NOT_COMPARABLE)
    if SPAN_ID[span] not in ran:
        there = ", ".join(SPAN_NAMES[number] for number in np.unique(ran).tolist())
        raise SpantraceError(
            f"{span} did not run in {steady.sum()} decode cycles; what ran here: {there}", EXIT_NOT_COMPARABLE
        )


def _sampled(design: Design, subject: Subject, progress: Callable[[int], None]) -> SpanStacks:
    """Windows until there are samples enough in the span, or time is up."""
    deadline = time.monotonic() + design.seconds
    windows: list[tuple[Window, list[Frame]]] = []
    while True:
        windows.append(_sample_once(design.span, subject))
        found = within(subject.recording(), windows, design.span)
        progress(len(found.records))
        if len(found.records) >= design.samples or time.monotonic() > deadline:
            return found


def _sample_once(span: str, subject: Subject) -> tuple[Window, list[Frame]]:
    begun = _asked(subject, {"type": BEGIN_STACKS, "span": span})
    if not any(answer["places"] for answer in begun):
        raise SpantraceError(f"no function of {span} runs here that could be sampled", EXIT_NOT_COMPARABLE)
    subject.run(SAMPLED)
    ended = _asked(subject, {"type": END_STACKS})
    return _between(begun, ended), ended


def _traced(design: Design, subject: Subject) -> tuple[Window, list[Frame]]:
    begun = _asked(subject, {"type": BEGIN_KERNELS})
    subject.run(design.cycles + MARGIN)
    ended = _asked(subject, {"type": END_KERNELS})
    return _between(begun, ended), ended


def _between(begun: list[Frame], ended: list[Frame]) -> Window:
    return max(answer["at_ns"] for answer in begun), min(answer["asked_ns"] for answer in ended)


def _asked(subject: Subject, request: Frame) -> list[Frame]:
    """The answers; Refused, with the reason, where one process refused."""
    answers = subject.ask(request)
    refused = [answer["refused"] for answer in answers if answer.get("refused")]
    if refused:
        raise Refused(refused[0])
    return answers
