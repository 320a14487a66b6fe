"""The samples that fall into one span: a stack seen within it, from the span's own function on.

A sample stands for the time since the one before it on its thread. The first of a call stands for the time since the
call began, but for no less than the interval: where calls are shorter than that, only some of them are hit, each place
in them as often as it takes time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from spantrace.errors import SpantraceError
from spantrace.explaining.stacks import INTERVAL_S, MAIN
from spantrace.frames import Frame, packed, unpack_rows
from spantrace.naming import Ints
from spantrace.recording import Recording
from spantrace.spans import SPAN_ID, Kind, Track

Window = tuple[int, int]
"""Its begin and end in CLOCK_MONOTONIC nanoseconds."""
Stack = tuple[str, ...]
_OURS = "spantrace/explaining/stacks.py"
_WRAPPER = "wrapper\x00<string>\x00"


class _Seen(NamedTuple):
    """One stack, and the places of the functions in it that are recorded as spans."""

    frames: Stack
    wrapped: tuple[int, ...]


@dataclass(frozen=True)
class SpanStacks:
    """What was seen in a span in so many cycles: `records` are stacks, root first, and seconds; `ns` is all its time.

    `left` says that no profiler is left on any thread; `paths` and `prefixes` are the process's own, to shorten files.
    """

    records: tuple[tuple[Stack, float], ...]
    cycles: int
    ns: int
    left: bool
    paths: tuple[str, ...]
    prefixes: tuple[str, ...]

    @property
    def covered(self) -> float:
        """The time for which the samples stand, as a part of the span's: about 1, where they are many."""
        return sum(seconds for _, seconds in self.records) * 1e9 / self.ns if self.ns else 0.0


def within(recording: Recording, windows: Sequence[tuple[Window, list[Frame]]], span: str) -> SpanStacks:
    """The samples in `span` in the steady cycles of all windows; each window with what every process answered."""
    records: list[tuple[_Seen, float]] = []
    cycles: set[int] = set()
    ns, left = 0, True
    about: Frame = {"paths": [], "prefixes": []}
    for window, answers in windows:
        for process, answer in enumerate(answers):
            left &= answer["left"]
            for thread in answer["threads"]:
                _refuse_failed(thread)
                start, end, cycle = _intervals(recording, window, span, process, thread["thread"])
                cycles.update(cycle.tolist())
                ns += int((end - start).sum())
                records += _records(thread, start, end)
                about = answer
    paths, prefixes = tuple(about["paths"]), tuple(about["prefixes"])
    return SpanStacks(tuple(_from_the_span(records)), len(cycles), ns, left, paths, prefixes)


def _refuse_failed(thread: Frame) -> None:
    if thread["failure"]:
        raise SpantraceError(f"the stacks of {thread['thread']} could not be sampled: {thread['failure']}")


def _intervals(recording: Recording, window: Window, span: str, process: int, thread: str) -> tuple[Ints, Ints, Ints]:
    """Start, end and cycle of the span's calls on a thread of a process, in steady cycles of a window."""
    spans, lanes = recording.spans, recording.header["lanes"]
    own = {number: lane["thread"] for number, lane in enumerate(lanes) if lane["process"] == process}
    wanted = [number for number, name in own.items() if name == thread] or [
        number for number, name in own.items() if name == MAIN
    ]
    at = (spans.name == SPAN_ID[span]) & (spans.track == Track.HOST) & np.isin(spans.lane, wanted)
    at &= (spans.start >= window[0]) & (spans.end <= window[1])
    at &= recording.cycles.kind[spans.cycle] == Kind.STEADY
    return spans.start[at], spans.end[at], spans.cycle[at]


def _records(thread: Frame, start: Ints, end: Ints) -> Iterator[tuple[_Seen, float]]:
    rows = unpack_rows(packed(thread))
    if not len(rows) or not len(start):
        return
    at, before = rows[:, 0], np.append(rows[0, 0], rows[:-1, 0])
    span = np.searchsorted(start, at, side="right") - 1
    inside = np.flatnonzero((span >= 0) & (at <= end[np.maximum(span, 0)]))
    began = start[np.maximum(span, 0)]
    first = np.maximum(at - began, np.minimum(at - before, round(INTERVAL_S * 1e9)))
    seconds = np.where(before < began, first, at - before) / 1e9
    stacks = [_cleaned([thread["frames"][one] for one in stack]) for stack in thread["stacks"]]
    for place in inside.tolist():
        if (seen := stacks[int(rows[place, 1])]) is not None:
            yield seen, float(seconds[place])


def _cleaned(stack: list[str]) -> _Seen | None:
    """The frames that are the server's, without wrappers; None where a wrapper was seen at its own work."""
    own = list(takewhile(lambda one: _OURS not in one, stack))
    if not own or any(one.startswith(_WRAPPER) for one in own[-2:]):
        return None
    frames: list[str] = []
    wrapped: list[int] = []
    for frame in own:
        if frame.startswith(_WRAPPER):
            wrapped.append(len(frames))
        elif frames and identity(frame) == identity(frames[-1]):
            wrapped.append(len(frames) - 1)
            frames[-1] = frame
        else:
            frames.append(frame)
    return _Seen(tuple(frames), tuple(wrapped))


def identity(frame: str) -> str:
    """The function that a frame runs, whatever its line: its name, file and first line."""
    return frame.partition("\x01")[0]


def _from_the_span(records: list[tuple[_Seen, float]]) -> Iterator[tuple[Stack, float]]:
    """The stacks from the last recorded function on that all of them share: what called it is no part of the span."""
    if not records:
        return
    first = records[0][0]
    shared = len(first.frames)
    for seen, _ in records:
        pairs = zip(seen.frames[:shared], first.frames, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: identity(pair[0]) == identity(pair[1]), pairs))
    root = max((place for place in first.wrapped if place < shared), default=max(shared - 1, 0))
    yield from ((seen.frames[root:], seconds) for seen, seconds in records)
