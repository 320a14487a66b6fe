"""What a trace leaves in doubt, in sentences, and what was read of it, in numbers."""

from __future__ import annotations

from typing import Any

from spantrace.importers.annotations import launches_graph
from spantrace.importers.finding import IDLE, Found
from spantrace.importers.launching import Launched
from spantrace.importers.trace import Trace

_DROPPED = {
    "duplicate": "are there twice and count once",
    "without dur": "have no duration and are left out",
    "without a time": "have no time that can be read and are left out",
    "of negative length": "have a negative duration and are left out",
    "not an event": "are no events and are left out",
    "begin or end": "are beginnings or ends instead of whole events and are left out",
}
_PUT_RIGHT = {"out of order", "with a time as text"}
"""Faults that change no figure; they are counted and not warned of."""


def notes(trace: Trace, found: Found, work: Launched, *, annotated: bool) -> list[str]:
    """One sentence for each thing that the figures may suffer from; `annotated` says that a host span was found."""
    wrong = [(trace.faults[fault], what) for fault, what in _DROPPED.items() if trace.faults[fault]]
    said = [f"{count:,} of the trace's events {what}" for count, what in wrong]
    orphans = int((work.kernels_by < 0).sum())
    if orphans:
        said.append(
            f"{orphans:,} of {len(work.kernels):,} kernels have no launch in the trace: they count by when they ran"
        )
    if trace.whole_graphs:
        said.append("graphs were traced as a whole: the gaps between their kernels count as busy")
    if not annotated:
        said.append("no range of the host is a span: whether it works when it does not wait for the GPU is not known")
    if not len(work.kernels):
        said.append(_without_gpu(trace, work))
    if idle := int(found.idle.sum()):
        said.append(f"{idle:,} turns of over {IDLE} medians are left out of the period: the engine was idle")
    if trace.cut:
        said.append("the trace file is cut short: what came before its end is counted")
    others = {int(one) for one in trace.kernels.process} - {int(one) for one in work.kernels.process}
    if others and len(work.kernels):
        said.append(
            f"the trace also holds {len(others)} other GPU{'s' * (len(others) > 1)}; the table is of one process"
        )
    return said


def _without_gpu(trace: Trace, work: Launched) -> str:
    graphs = int(work.in_graph.sum())
    launches = f": {len(work.calls):,} CUDA calls, {graphs:,} of graphs, and no kernel" if len(work.calls) else ""
    return f"the trace has no GPU part{launches}; how busy the GPU was is not known"


def counts(trace: Trace, found: Found, work: Launched) -> dict[str, Any]:
    """What was read, by whom it was written, and how the cycles were found."""
    launched = work.kernels_by[work.kernels_by >= 0]
    calls = work.calls.only((work.calls.start >= found.start[0]) & (work.calls.start < found.end[-1]))
    return {
        "source": trace.source,
        "cycles_by": found.by,
        "events": trace.read,
        "kernels": len(work.kernels),
        "kernels_in_graphs": int(work.in_graph[launched].sum()),
        "copies": len(work.copies),
        "graph_launches": int(trace.named(calls, launches_graph).sum()),
        "put_right": {fault: count for fault, count in sorted(trace.faults.items()) if count and fault in _PUT_RIGHT},
    }
