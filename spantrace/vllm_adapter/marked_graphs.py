"""Graphs with marks beside vLLM's own: those of this process, and what a recording does with and says of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from spantrace.frames import Frame
from spantrace.graph_capture import new_events
from spantrace.graph_spans import GraphTimes, MarkedGraph, MarkedReplay
from spantrace.graph_spans import told as graphs_told
from spantrace.patching import EntryPatch
from spantrace.vllm_adapter.description import gpu_of_this_process, runner_version
from spantrace.vllm_adapter.graph_request import GRAPH_SPANS
from spantrace.vllm_adapter.graph_sites import NOT_CALLED, GraphSite

NO_GRAPHS = "no CUDA graphs here: this server runs without a GPU"
FULL = """--compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}'"""
NO_FULL = f"no FULL graph was captured with parts; start the server with {FULL}"
DRAFT, OTHER_DRAFTER = "draft.forward", "of drafters' graphs those of DFlash and DSpark are known"
NOT_V2 = "model runner V1 keeps its graphs elsewhere; start the server with VLLM_USE_V2_MODEL_RUNNER=1"


@dataclass
class Parts:
    """What one model's graphs are marked at: `rest` names what is behind the last site.

    `graphs` are (vLLM's dictionary of graphs, key, graph with its twin), `seen` the sites that a capture passed, and
    `ms` what a replay takes without marks and with them.
    """

    span: str
    sites: list[GraphSite]
    rest: str
    events: tuple[Any, ...] = field(default_factory=new_events)
    graphs: list[tuple[dict[Any, Any], Any, MarkedGraph]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    ms: tuple[float, float] | None = None


@dataclass
class Kept:
    """By vLLM's graph manager its parts; what failed, by name; and what a pair of marks reads."""

    parts: WeakKeyDictionary[Any, Parts] = field(default_factory=WeakKeyDictionary)
    failures: dict[str, str] = field(default_factory=dict)
    empty_ns: float = 0.0


kept = Kept()


def times(clock: Any) -> GraphTimes | None:
    """What reads this process's marks in one recording; None where no graph has any."""
    return GraphTimes(clock, kept.empty_ns) if any(parts.graphs for parts in kept.parts.values()) else None


def replays(read: GraphTimes) -> list[EntryPatch]:
    """What puts each graph's stand-in into its place for a recording; which graph a replay is of it asks by itself."""
    found = []
    for parts in kept.parts.values():
        for entries, key, graph in parts.graphs:
            found.append(EntryPatch(entries, key, graph.plain, MarkedReplay(graph, read)))
    return found


def told(runner: Any) -> Frame | None:
    """What a recording says of the graphs: by span their parts and cost, and by name what is not timed, and why.

    None where nobody asked for them, and in a process that has no runner.
    """
    if os.environ.get(GRAPH_SPANS) != "1" or runner is None:
        return None
    marked = [parts for parts in kept.parts.values() if parts.graphs]
    spans = {parts.span: graphs_told([graph for *_, graph in parts.graphs], parts.ms) for parts in marked}
    missing = {name: why for parts in kept.parts.values() for name, why in not_timed(parts).items()}
    if getattr(runner, "speculator", None) is not None and DRAFT not in {one.span for one in kept.parts.values()}:
        missing[DRAFT] = OTHER_DRAFTER
    if not spans:
        missing["graph spans"] = _why_none(runner)
    return {"empty_ns": kept.empty_ns, "spans": spans, "missing": {**missing, **kept.failures}}


def not_timed(parts: Parts) -> dict[str, str]:
    """The parts of a model's graphs that have no marks, and why."""
    return {site.name: site.why or NOT_CALLED for site in parts.sites if site.name not in parts.seen}


def _why_none(runner: Any) -> str:
    if gpu_of_this_process() is None:
        return NO_GRAPHS
    return NOT_V2 if runner_version(runner) == "V1" else NO_FULL
