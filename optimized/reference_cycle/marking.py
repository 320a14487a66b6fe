"""Marks between the parts of a pass: where a recording asks for them each pass is captured once more, with marks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spantrace.graph_capture import new_events, replay_ms
from spantrace.graph_spans import GraphTimes, MarkedGraph, Marks

Result = TypeVar("Result")


@dataclass(frozen=True)
class Twin(Generic[Result]):
    """A pass's graph beside the one with marks, whose result is its own."""

    graph: MarkedGraph
    result: Result
    times: GraphTimes

    def begins(self) -> bool:
        """Whether the replay that now begins is to be the one with marks."""
        return self.times.begins(self.graph)


class Marking:
    """What is marked in this process: nothing unless `times` is set, to which the marks then go.

    `marks` are those of the graph under capture; `graphs` are all that have some, with milliseconds of a replay without
    them and with.
    """

    def __init__(self) -> None:
        self.times: GraphTimes | None = None
        self.marks: Marks | None = None
        self.graphs: list[tuple[MarkedGraph, tuple[float, float]]] = []

    def twin(
        self, plain: Any, capture: Callable[[Callable[[], Result]], tuple[Any, Result]], run: Callable[[], Result]
    ) -> Twin[Result] | None:
        """Capture `run` once more, with marks; None where nobody asks, or the pass has no two parts."""
        if self.times is None:
            return None
        events = new_events()
        marks = self.marks = Marks(events)

        def marked() -> Result:
            marks.begin()
            return run()

        try:
            graph, result = capture(marked)
        finally:
            self.marks = None
        if len(marks.parts) < 2:
            return None
        both = MarkedGraph(plain, graph, tuple(marks.parts), events)
        self.graphs.append((both, replay_ms(both)))
        return Twin(both, result, self.times)


marking = Marking()


def part(name: str | None, result: Result) -> Result:
    """`result`, with which the part of the pass that bears this name ends; no part ends without a name."""
    if marking.marks is not None and name is not None:
        marking.marks.end(name)
    return result
