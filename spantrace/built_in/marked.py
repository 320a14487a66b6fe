"""Graphs with marks in the built-in cycle, while a recording of it runs."""

from __future__ import annotations

from optimized.reference_cycle.marking import marking
from spantrace.frames import Frame
from spantrace.gpu_clock import GpuClock
from spantrace.graph_capture import empty_pair_ns
from spantrace.graph_spans import GraphTimes, MarkedGraph, told
from spantrace.spans import PARENT

DRAFT, MIXED = "draft.forward", "this drafter's steps mix its parts"


class Marked:
    """Between `begin` and `end` what the cycle captures is captured once more with marks, which `clock` then times."""

    def __init__(self, clock: GpuClock, *, drafts: bool) -> None:
        self._drafts = drafts
        self._empty_ns = empty_pair_ns()
        clock.graphs = self._times = GraphTimes(clock, self._empty_ns)
        self._graphs: list[tuple[MarkedGraph, tuple[float, float]]] = []

    def begin(self) -> None:
        """Ask for marks in all that is captured from now on."""
        marking.times, marking.graphs = self._times, self._graphs

    def end(self) -> None:
        """Ask for none any more."""
        marking.times = None

    def told(self) -> Frame:
        """What the recording says of the graphs so far."""
        spans: Frame = {}
        for graph, ms in self._graphs:
            spans[str(PARENT[next(filter(None, graph.parts))])] = told([graph], ms)
        missing = {DRAFT: MIXED} if spans and self._drafts and DRAFT not in spans else {}
        return {"empty_ns": self._empty_ns, "spans": spans, "missing": missing}
