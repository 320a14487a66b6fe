"""Alternating windows in which one span is held up by a known time and in which it is not, all in one recording.

A block is two windows of one span, one with the delay and one without; from block to block their order turns and the
spans change places, so that a drift of the server falls on both alike. What each window was is journaled beside the
rows (spantrace.windows), and what each process says that it `held`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spantrace.delays import LONGEST_NS, LONGEST_S
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.frames import Frame
from spantrace.journal import Journal
from spantrace.spans import PARENT, SPAN_NAMES, WAITS, Track

WORKING_SPANS = tuple(name for name in SPAN_NAMES if PARENT[name] == "cycle" and name not in WAITS)
"""The spans that are tried where none is named: the parts of the cycle that do some work."""
Aim = tuple[str, Track]


@dataclass(frozen=True)
class Design:
    """Which spans on which track, by how many ns, in how many blocks with windows of so many decode cycles.

    It ends after so many `seconds`, with the block that it is in left out, and may slow the whole down by `slowdown`.
    """

    aims: tuple[Aim, ...] = ()
    ns: int = 200_000
    cycles: int = 100
    blocks: int = 8
    seconds: float = 600.0
    slowdown: float = 0.2

    def __post_init__(self) -> None:
        if unknown := [span for span, _ in self.aims if span not in SPAN_NAMES]:
            raise SpantraceError(f"no span is called {unknown[0]!r}; choose from {', '.join(WORKING_SPANS)}")
        if waits := [span for span, _ in self.aims if span in WAITS]:
            raise SpantraceError(f"{waits[0]} is a wait and has no work to hold up; name what it waits for")
        if any(span == "cycle" for span, _ in self.aims):
            raise SpantraceError(f"cycle is the whole of it; name a part, such as {', '.join(WORKING_SPANS)}")
        if not 0 < self.ns <= LONGEST_NS:
            raise SpantraceError(f"a delay must be longer than 0 and at most {LONGEST_NS / 1e6:g} ms")

    @property
    def tried(self) -> tuple[Aim, ...]:
        """The named aims, or all working spans on the host."""
        return self.aims or tuple((span, Track.HOST) for span in WORKING_SPANS)


class Subject(Protocol):
    """What is delayed: a server that is being recorded, or the built-in cycle."""

    def run(self, cycles: int) -> None:
        """Let so many decode cycles pass."""

    def delay(self, request: Frame) -> list[Frame]:
        """Ask each process for a delay; their answers once it is in force."""


OFF: Frame = {"span": "", "track": "host", "ns": 0, "seconds": 0.0}


def conduct(design: Design, subject: Subject, journal: Journal, progress: Callable[[int], None]) -> str:
    """Run all windows; what there is to say of the end, nothing where all blocks were run. No delay is left behind."""
    began = time.monotonic()
    subject.run(design.cycles)
    _check_slowdown(design, (time.monotonic() - began) / design.cycles)
    aims, done = list(design.tried), 0
    try:
        for block in range(design.blocks):
            for index, aim in enumerate(_turned(list(aims), block)):
                if time.monotonic() - began > design.seconds:
                    return f"stopped after {design.seconds:g} s, in block {block + 1} of {design.blocks}"
                if not _block(design, aim, block, (block + index) % 2 == 1, subject, journal):
                    aims.remove(aim)
                done += 1
                progress(done)
    finally:
        with contextlib.suppress(SpantraceError):
            subject.delay(OFF)
    return ""


def _check_slowdown(design: Design, period_s: float) -> None:
    """SpantraceError where the delay is too long beside the cycle, or a window longer than a delay may last."""
    share = design.ns / 2e9 / period_s
    if share > design.slowdown:
        most = 2e6 * period_s * design.slowdown
        raise SpantraceError(
            f"{design.ns / 1e3:g} us in every other window would slow a cycle of {period_s * 1e3:.2g} ms down by "
            f"{share:.0%}, more than {design.slowdown:.0%}; choose --delay {most:.2g} or a larger --max-slowdown"
        )
    if design.cycles * period_s > LONGEST_S / 2:
        raise SpantraceError(
            f"{design.cycles} cycles take {design.cycles * period_s:.0f} s here, more than the {LONGEST_S / 2:g} s "
            "that a window may last; choose fewer --cycles"
        )


def _turned(aims: Sequence[Aim], block: int) -> list[Aim]:
    """The aims in another order in each block: from another one on, and every other time backwards."""
    first = block % max(len(aims), 1)
    turned = [*aims[first:], *aims[:first]]
    return turned[::-1] if block % 2 else turned


def _block(design: Design, aim: Aim, block: int, delayed_first: bool, subject: Subject, journal: Journal) -> bool:
    """Both windows of one span; False where nothing of it can be held up, which is an error where it was named."""
    windows: list[Frame] = []
    for delayed in (delayed_first, not delayed_first):
        window = _window(design, aim, delayed, subject)
        if window is None and design.aims:
            raise SpantraceError(_nothing(aim), EXIT_NOT_COMPARABLE)
        if window is None:
            return False
        windows.append({"type": "window", "block": block, **window})
    for window in windows:
        journal.write(window)
    return True


def _nothing(aim: Aim) -> str:
    span, track = aim
    if track is Track.GPU:
        return f"no function of {span} that is timed on a GPU runs here; only what launches work on one can be held up"
    return f"no function of {span} runs here that could be held up"


def _window(design: Design, aim: Aim, delayed: bool, subject: Subject) -> Frame | None:
    """One window; None where the delay found nothing to hold up."""
    (span, track), asked = aim, time.perf_counter_ns()
    about = {"span": span, "track": track.name.lower(), "ns": design.ns if delayed else 0, "from_ns": asked}
    begin = asked
    if delayed:
        answers = subject.delay({**{key: about[key] for key in ("span", "track", "ns")}, "seconds": LONGEST_S})
        begin = max(answer["at_ns"] for answer in answers)
        if not any(answer["places"] for answer in answers):
            return None
    subject.run(design.cycles)
    end = gone = time.perf_counter_ns()
    held: list[Frame] = []
    if delayed:
        answers = subject.delay(OFF)
        gone = max(answer["at_ns"] for answer in answers)
        held = [answer["held"] for answer in answers if answer["places"] or any(answer["held"].values())]
    return {**about, "begin_ns": begin, "end_ns": end, "to_ns": gone, "held": held}
