"""GPU times of the parts of a CUDA graph: marks captured between them, read after a replay that nobody waits for.

A graph with marks lies beside the plain one that it repeats. While a recording runs, one of `EVERY` timed cycles
replays the former and all others the latter: so the marks of a replay have passed, and are read, before they are
recorded anew, and what they cost is seen from cycle to cycle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spantrace.gpu_clock import GpuClock, TimingEvent
from spantrace.ring import Ring
from spantrace.spans import SPAN_ID

MOST_PARTS = 16
EVERY = 3
WIDTH = 4
"""Integers of one row: span, host ns at the replay, and begin and end in ns after the event that opened its span."""
FOLLOWS = {
    "target.forward.middle_layers": "target.forward.first_layers",
    "target.forward.last_layers": "target.forward.middle_layers",
    "target.forward.logits": "target.forward.last_layers",
    "target.forward.output": "target.forward.last_layers",
    "draft.forward.logits": "draft.forward.layers",
    "draft.forward.sampling": "draft.forward.logits",
    "draft.forward.markov": "draft.forward.logits",
}
"""What a part begins behind: where that has no mark of its own, the part has no beginning and no name."""


def layer_groups(count: int) -> dict[int, str]:
    """Of so many layers the last one of each of the three groups that are timed, by its name; none of fewer layers."""
    names = ("target.forward.first_layers", "target.forward.middle_layers", "target.forward.last_layers")
    if count < len(names):
        return {}
    return {count * number // len(names) - 1: name for number, name in enumerate(names, 1)}


class Graph(Protocol):
    """What torch.cuda.CUDAGraph does."""

    def replay(self) -> None:
        """Launch it on the current stream."""


class Markable(TimingEvent, Protocol):
    """What torch.cuda.Event(enable_timing=True, external=True) does while a graph is captured."""

    def record(self, stream: Any = None) -> None:
        """Put the event into the graph, or on a stream."""


class Marks:
    """The marks of one graph under capture; `parts` names what lies between two, "" where that has no name.

    `events` are those to record, one more than the parts that fit; the graphs of one model share them.
    """

    def __init__(self, events: Sequence[Markable]) -> None:
        self._events = events
        self.parts: list[str] = []
        self._seen: set[str] = set()
        self._began = False

    def begin(self) -> None:
        """Mark where the graph begins."""
        self._events[0].record()
        self._began = True

    def end(self, name: str) -> None:
        """Mark where the part of this name ends; a second one of the name is none."""
        if not self._began or name in self._seen or len(self.parts) + 1 >= len(self._events):
            return
        self._seen.add(name)
        self._events[len(self.parts) + 1].record()
        self.parts.append(name if FOLLOWS.get(name, "") in ("", *self.parts) else "")


@dataclass(frozen=True)
class MarkedGraph:
    """`marked` repeats `plain` and passes events[i] where part i begins, and the next one where it ends."""

    plain: Graph
    marked: Graph
    parts: tuple[str, ...]
    events: tuple[TimingEvent, ...]


def told(graphs: Sequence[MarkedGraph], ms: tuple[float, float] | None) -> dict[str, Any]:
    """What a recording says of a span's graphs; `ms` is what a replay takes without marks and with them."""
    names = max((graph.parts for graph in graphs), key=len)
    plain_ms, marked_ms = ms or (None, None)
    return {"marks": len(names) + 1, "graphs": len(graphs), "plain_ms": plain_ms, "marked_ms": marked_ms}


@dataclass(frozen=True)
class _Replay:
    graph: MarkedGraph
    opened: TimingEvent
    at_ns: int


class GraphTimes:
    """The parts of replayed graphs on their way to rows; `clock` times the replays as a whole.

    `empty_ns` is what a pair of marks with nothing in between reads, and is taken off each part. All of it happens on
    the thread that replays; what fails there is counted with the clock's errors, and ends the marks alone.
    """

    def __init__(self, clock: GpuClock, empty_ns: float) -> None:
        self._clock, self._empty_ns = clock, empty_ns
        self._pending: dict[int, _Replay] = {}
        self._rows = Ring(1 << 14, WIDTH)
        self._timed, self._due, self._ended = 0, False, False
        self.reads = 0

    def new_cycle(self, timed: bool) -> None:
        """A cycle begins: read the marks that have passed, and see whether this one's graphs are to have marks."""
        if self._ended:
            return
        self._read()
        self._timed += timed
        self._due = timed and self._timed % EVERY == 0

    def begins(self, graph: MarkedGraph) -> bool:
        """Whether the replay that now begins is to be the one with marks."""
        key = id(graph.events[0])
        if not self._due or self._ended or key in self._pending or (opened := self._clock.opened()) is None:
            return False
        self._pending[key] = _Replay(graph, opened, time.perf_counter_ns())
        return True

    def drain(self) -> list[int]:
        """Take out the values of the rows so far, `WIDTH` of each."""
        return self._rows.drain()

    def _read(self) -> None:
        try:
            for key, replay in list(self._pending.items()):
                last = replay.graph.events[len(replay.graph.parts)]
                if last.query() and self._put(replay):
                    del self._pending[key]
        except Exception as error:
            self._ended = True
            self._clock.failed(error)

    def _put(self, replay: _Replay) -> bool:
        """Keep a replay's parts; False where its marks still have the times of an earlier one."""
        parts = replay.graph.parts
        at = [replay.opened.elapsed_time(event) * 1e6 for event in replay.graph.events[: len(parts) + 1]]
        self.reads += len(at)
        if at[0] < 0 or at[-1] < at[0]:
            return False
        for name, begin, end in zip(parts, at, at[1:], strict=False):
            if name:
                stop = max(begin, end - self._empty_ns)
                self._rows.put((SPAN_ID[name], replay.at_ns, round(begin), round(stop)))
        return True


class MarkedReplay:
    """Stands in for a plain graph while a recording runs, and replays the marked one where that is due."""

    def __init__(self, graph: MarkedGraph, times: GraphTimes) -> None:
        self._graph, self._times = graph, times

    def replay(self) -> None:
        """Launch one of the two."""
        (self._graph.marked if self._times.begins(self._graph) else self._graph.plain).replay()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph.plain, name)
