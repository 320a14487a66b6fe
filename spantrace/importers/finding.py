"""Finds the cycles of a trace: by `ProfilerStep`, by an engine's annotation of each step, or by the repeating graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.importers.annotations import VERIFY, batch_of, launches_graph, step_number
from spantrace.importers.launching import launched
from spantrace.importers.trace import Events, Trace
from spantrace.naming import Flags, Ints

IDLE = 10
"""A turn of more than this many medians is one in which the engine had nothing to do."""
_LONGEST_PATTERN, _LOOKED_AT, _SLACK = 512, 20_000, 0.02
"""Launches in the longest pattern looked for, launches that are looked at, and how much worse a shorter one may fit."""


@dataclass(frozen=True)
class Found:
    """The cycles: `start`, `end`, `step` [n], found `by` what, on which thread of which process.

    `idle` says after which cycles the engine had nothing to do; `left_out` counts cycles of which no end is known.
    """

    by: str
    process: int
    thread: int
    start: Ints
    end: Ints
    step: Ints
    idle: Flags
    left_out: int = 0


def find_cycles(trace: Trace) -> Found:
    """The cycles of the first process that has two; SpantraceError where the trace has none."""
    for rule in (_by_steps, _by_batches, _by_graphs):
        found = rule(trace)
        if found is not None and len(found.start) > 1:
            return found
    wrong = ", ".join(f"{count:,} {fault}" for fault, count in sorted(trace.faults.items()) if count)
    raise SpantraceError(
        "no two cycles are found in the trace: it has no ProfilerStep, no annotation of a step by vLLM, SGLang or "
        "TensorRT-LLM and no CUDA graph that is launched again and again"
        f"{f' (events that are wrong: {wrong})' if wrong else ''}; "
        + ("the file is cut short: copy it anew" if trace.cut else "annotate the steps, or trace for longer"),
        EXIT_NOT_COMPARABLE,
    )


def _by_steps(trace: Trace) -> Found | None:
    rows = _on_one_thread(trace, trace.annotations, lambda name: step_number(name) is not None)
    if rows is None:
        return None
    step = np.array([step_number(trace.labels[name]) for name in rows.name.tolist()], dtype=np.int64)
    idle = np.zeros(len(rows), dtype=bool)
    return Found("ProfilerStep", int(rows.process[0]), int(rows.thread[0]), rows.start, rows.end, step, idle)


def _by_batches(trace: Trace) -> Found | None:
    """A turn begins with each annotated step; SGLang's drafting steps are part of the turn that verifies."""
    rows = _on_one_thread(trace, trace.annotations, lambda name: batch_of(name) is not None)
    if rows is None:
        return None
    verifies = trace.named(rows, lambda name: name.startswith(VERIFY))
    if verifies.any():
        rows = rows.only(verifies | trace.named(rows, lambda name: name.startswith(("step[EXTEND", "step[MIXED"))))
    return _turns("the engine's annotations", rows)


def _by_graphs(trace: Trace) -> Found | None:
    rows = _on_one_thread(trace, trace.calls, launches_graph)
    if rows is None:
        return None
    work = launched(trace, int(rows.process[0]))
    if len(work.kernels):
        rows = rows.only(_leaders(*_graphs(rows, work.kernels)))
    return _turns("the repeating graph launch", rows) if len(rows) else None


def _on_one_thread(trace: Trace, events: Events, wanted: Callable[[str], bool]) -> Events | None:
    """The wanted events of the thread that has most of them in the first process that has any, none inside another."""
    rows = events.only(trace.named(events, wanted))
    if not len(rows):
        return None
    rows = rows.only(rows.process == rows.process.min())
    threads, counts = np.unique(rows.thread, return_counts=True)
    rows = rows.only(rows.thread == threads[counts.argmax()])
    before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(rows.end)[:-1])
    return rows.only(rows.start >= before)


def _turns(by: str, rows: Events) -> Found:
    """Cycles from each event's start to the next one's; before an idle stretch to the event's own end."""
    length = np.diff(rows.start)
    idle = length > IDLE * np.median(length) if len(length) else np.zeros(0, dtype=bool)
    end = np.where(idle, rows.end[:-1], rows.start[1:])
    step = np.arange(len(end))
    return Found(by, int(rows.process[0]), int(rows.thread[0]), rows.start[:-1], end, step, idle, left_out=1)


def _graphs(launches: Events, kernels: Events) -> tuple[Ints, Ints]:
    """Which graph each launch is of, told by its kernels' number and first name, and its GPU time in ns, [launches]."""
    order = np.argsort(launches.correlation, kind="stable")
    ids = launches.correlation[order]
    at = np.minimum(np.searchsorted(ids, kernels.correlation), len(ids) - 1)
    own = ids[at] == kernels.correlation
    place, mine = order[at[own]], kernels.only(own)
    count = np.bincount(place, minlength=len(launches))
    first = np.full(len(launches), -1, dtype=np.int64)
    first[place[::-1]] = mine.name[::-1]
    time = np.bincount(place, weights=mine.end - mine.start, minlength=len(launches)).astype(np.int64)
    graph: Ints = np.unique(np.column_stack([count, first]), axis=0, return_inverse=True)[1].reshape(-1)
    return graph, time


def _leaders(graph: Ints, time: Ints) -> Flags:
    """Which launches begin a cycle: the longest-running graph of those launched once in each turn of the pattern.

    The pattern's length is the shortest shift by which the sequence of graphs fits itself about as well as by any.
    """
    some = graph[:_LOOKED_AT]
    shifts = range(1, min(_LONGEST_PATTERN, len(some) // 2) + 1)
    fit = np.array([np.mean(some[shift:] == some[:-shift]) for shift in shifts])
    if not len(fit):
        return np.ones(len(graph), dtype=bool)
    length = int(np.argmax(fit >= fit.max() - _SLACK)) + 1
    numbers, counts = np.unique(graph, return_counts=True)
    turns = len(graph) / length
    once = numbers[np.abs(counts - turns) <= 0.1 * turns + 1]
    if not len(once):
        every: Flags = np.arange(len(graph)) % length == 0
        return every
    spent = [int(time[graph == number].sum()) for number in once]
    leads: Flags = graph == once[int(np.argmax(spent))]
    return leads
