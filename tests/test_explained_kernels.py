"""Kernels by the span that launched them, against figures worked out by hand; and the trace's clock, by its anchors."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import cycles_of, header, spans_of
from traced import MS, US, annotation, copied, kernel, launch, text

from spantrace.cli.explained_kernels import kernels_of
from spantrace.errors import SpantraceError
from spantrace.explaining.conducting import Design, Explained
from spantrace.explaining.kernel_window import ANCHOR
from spantrace.explaining.kernels import KernelWindow, kernels_in
from spantrace.frames import Frame
from spantrace.recording import Recording
from spantrace.spans import Track
from spantrace.tables import Document
from spantrace.terminal import lines

CYCLES = 4
OFFSET = 7_000_000_123
"""The trace's clock less CLOCK_MONOTONIC."""
OTHER_THREAD = 99


def recorded() -> Recording:
    """Cycles of 10 ms: target.forward 1..2 ms, draft.propose 2..4 ms with draft.forward 3..4; events say 8 ms busy."""
    bounds = [(index * 10 * MS, index * 10 * MS + 9 * MS) for index in range(CYCLES)]
    rows: list[Any] = []
    for index, (at, end) in enumerate(bounds):
        rows.append(("cycle", Track.HOST, index, at, end))
        rows.append(("target.forward", Track.HOST, index, at + MS, at + 2 * MS))
        rows.append(("draft.propose", Track.HOST, index, at + 2 * MS, at + 4 * MS))
        rows.append(("draft.forward", Track.HOST, index, at + 3 * MS, at + 4 * MS))
        rows.append(("target.forward", Track.GPU, index, at + MS, at + 9 * MS, 1))
    lanes = [{"process": 0, "thread": "main"}, {"process": 0, "thread": "GPU stream"}]
    return Recording(header(lanes=lanes), cycles_of(bounds, last_period=10 * MS), spans_of(rows))


def traced(**changes: Any) -> Frame:
    """What the process answers: per cycle a graph of two kernels that overlap, two plain ones, one of another thread.

    target.forward's graph runs 4 + 2 ms of which 1 ms overlaps; draft.forward launches 1 ms, draft.propose 0.5 ms more.
    """
    events, anchors = [], []
    for index, opened in enumerate((900, 100, 500)):
        at = index * 10_000
        anchors.append([at, at + opened])
        events.append(annotation(ANCHOR, at + opened // 2 + OFFSET, 50))
    for index in range(CYCLES):
        at, tie = index * 10 * MS + OFFSET, 10 * index + 1
        events += [
            launch(tie, at + MS + 10 * US, graph=True),
            kernel("gemm", at + 2 * MS, 4 * MS, tie),
            kernel("attention", at + 5 * MS, 2 * MS, tie, stream=8),
            launch(tie + 1, at + 2 * MS + 10 * US),
            kernel("prepare", at + 7 * MS, MS // 2, tie + 1),
            launch(tie + 2, at + 3 * MS + 10 * US),
            kernel("draft_gemm", at + 8 * MS, MS, tie + 2),
            launch(tie + 3, at + 3 * MS + 20 * US, tid=OTHER_THREAD),
            kernel("elsewhere", at + 8 * MS, MS // 4, tie + 3, stream=9),
            copied(at + 9 * MS, MS // 2, tie + 4),
        ]
    trace = gzip.compress(text(events).encode())
    return {"trace": trace, "anchors": anchors, **changes}


def found_in(span: str, answers: list[Frame] | None = None, chosen: Any = None) -> KernelWindow:
    """The kernels of all cycles."""
    chosen = np.ones(CYCLES, dtype=bool) if chosen is None else chosen
    found = kernels_in(recorded(), answers or [traced()], chosen, span)
    assert found is not None
    return found


def test_kernels_are_of_the_spans_in_which_they_were_launched() -> None:
    found = found_in("draft.propose")
    assert (found.cycles, found.period, found.unlaunched) == (CYCLES, 10 * MS, 0)
    by_span = {one.span: one for one in found.spans}
    assert list(by_span) == ["cycle", "target.forward", "draft.propose", "draft.forward"]
    target = by_span["target.forward"]
    assert (target.launches, target.graphs, target.kernels, target.nodes, target.ns) == (1, 1, 2, 2, 5 * MS)
    propose = by_span["draft.propose"]
    assert (propose.launches, propose.graphs, propose.kernels, propose.nodes, propose.ns) == (2, 0, 2, 0, 1.5 * MS)
    assert by_span["draft.forward"].ns == MS
    assert (by_span["cycle"].launches, by_span["cycle"].kernels, by_span["cycle"].ns) == (3, 4, 6.5 * MS)
    assert [(one.name, one.calls, one.ns) for one in found.top] == [("draft_gemm", 1, MS), ("prepare", 1, MS / 2)]


def test_busy_is_the_union_over_streams_and_threads() -> None:
    assert found_in("cycle").busy == 6.5 * MS


def test_only_chosen_cycles_count() -> None:
    chosen = np.array([False, True, True, False])
    found = found_in("target.forward", chosen=chosen)
    assert (found.cycles, found.busy) == (2, 6.5 * MS)
    assert [one.launches for one in found.spans if one.span == "target.forward"] == [1]


def test_the_process_with_the_kernels_is_looked_at() -> None:
    engine = traced(trace=gzip.compress(text([annotation(ANCHOR, OFFSET, 50)]).encode()), anchors=[[0, 10]])
    recording = recorded()
    for lane in recording.header["lanes"]:
        lane["process"] = 1
    found = kernels_in(recording, [engine, traced()], np.ones(CYCLES, dtype=bool), "cycle")
    assert found is not None
    assert found.busy == 6.5 * MS


def test_without_a_gpu_or_a_kernel_there_is_nothing() -> None:
    chosen = np.ones(CYCLES, dtype=bool)
    assert kernels_in(recorded(), [{"trace": None}], chosen, "cycle") is None
    empty = traced(trace=gzip.compress(text([annotation(ANCHOR, OFFSET, 50)]).encode()))
    assert kernels_in(recorded(), [empty], chosen, "cycle") is None


def test_lost_anchors_and_no_whole_cycle_are_one_sentence() -> None:
    with pytest.raises(SpantraceError, match="has lost its anchors"):
        found_in("cycle", [traced(anchors=[[0, 10]])])
    with pytest.raises(SpantraceError, match="no whole steady cycle lies in the window"):
        found_in("cycle", chosen=np.zeros(CYCLES, dtype=bool))


def test_what_people_see() -> None:
    window = (0, CYCLES * 10 * MS)
    explained = Explained((0, 1), (0, 1), None, (window, [traced()]))
    document = kernels_of(Design("draft.propose", host=False), recorded(), explained)
    assert isinstance(document, Document)
    printed = [line.plain.rstrip() for line in lines(document, 80, bars=False, cut=True)]
    assert "draft.propose  launches 2.0 times a cycle." in "\n".join(printed)
    assert any(line.split() == ["draft.propose", "2.0", "0.0", "2.0", "0.0", "1.50", "15%"] for line in printed)
    assert any(line.split() == ["draft_gemm", "-", "-", "1.0", "-", "1.00", "10%"] for line in printed)
    busy = " ".join(" ".join(printed).split())
    assert "GPU busy 6.50 of 10.0 ms a cycle in kernels, united over streams (65%)" in busy
    assert "8.00 ms by event pairs in the same cycles: 23.1% too high" in busy
    assert max(map(len, printed)) <= 80


def test_a_window_of_torch_profiler_ties_the_clocks(tmp_path: Path) -> None:
    """On the CPU there is no kernel, but the trace has its anchors, and each lies where the host says."""
    pytest.importorskip("torch")
    from spantrace.explaining import kernels
    from spantrace.explaining.kernel_window import ANCHORS
    from spantrace.explaining.kernel_window import KernelWindow as Tracing
    from spantrace.explaining.profilers import torch_profiler

    window = Tracing(None)
    window.begin()
    assert "torch.profiler is already at work in process" in torch_profiler()
    with pytest.raises(SpantraceError, match=r"torch\.profiler is already at work in process \d+; wait until"):
        Tracing(None).begin()
    answer = window.end()
    assert torch_profiler() == ""
    trace = kernels._read(answer["trace"])
    assert len(answer["anchors"]) == 2 * ANCHORS
    offset = kernels._offset(trace, answer)
    anchored = trace.annotations.only(trace.named(trace.annotations, lambda name: name == ANCHOR))
    for start, (before, after) in zip(anchored.start.tolist(), answer["anchors"], strict=True):
        assert before - MS < start - offset < after + MS
    window.abandon()
