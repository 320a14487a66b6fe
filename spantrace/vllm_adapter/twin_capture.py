"""Captures vLLM's FULL graphs twice: first as it does by itself and by its own code alone, then once more with marks.

So a server that is not recorded replays what it would have anyway. Model runner V2 only: V1 keeps its graphs elsewhere.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from spantrace import graph_capture
from spantrace.graph_spans import MarkedGraph, Marks
from spantrace.patching import Function, plan
from spantrace.vllm_adapter import graph_sites
from spantrace.vllm_adapter.after_import import after_import
from spantrace.vllm_adapter.marked_graphs import Parts, kept, not_timed

MANAGERS = "vllm.v1.worker.gpu.cudagraph_utils"
DRAFTERS = "vllm.v1.worker.gpu.spec_decode.dflash.cudagraph"
CONTEXT_IN_GRAPH = ("precompute_context_kv", "prepare_forward")
"""What the drafter's manager is given, from 0.31 and 0.32 on, to capture ahead of the drafter."""
_log = logging.getLogger("spantrace")


def prepare() -> None:
    """Have every FULL graph that this process captures from now on captured once more, with marks."""
    after_import(MANAGERS, lambda: _patch(MANAGERS, "ModelCudaGraphManager", _of_target))
    after_import(MANAGERS, lambda: _patch(MANAGERS, "CudaGraphManager", _twice))
    after_import(DRAFTERS, lambda: _patch(DRAFTERS, "DFlashCudaGraphManager", _of_drafter))


def _patch(module: str, owner: str, wrap: Callable[[Function], Function]) -> None:
    """Wrap a class's capture for good; a vLLM that has none is left as it is."""
    try:
        plan(getattr(sys.modules[module], owner), "capture", wrap).install()
    except Exception as error:
        _failed("graph spans", error)


def _failed(name: str, error: Exception) -> None:
    kept.failures[name] = f"{type(error).__name__}: {error}"
    _log.warning("spantrace: %s cannot be timed: %s", name, kept.failures[name])


def _of_target(original: Function) -> Function:
    """Note which model the target's graphs are of."""
    known = inspect.signature(original)

    @wraps(original)
    def capture(manager: Any, *args: Any, **kwargs: Any) -> Any:
        _note(manager, lambda: _parts_of_target(known.bind(manager, *args, **kwargs).arguments["model"]))
        return original(manager, *args, **kwargs)

    return capture


def _of_drafter(original: Function) -> Function:
    """Note which model the drafter's graphs are of, by the speculator whose method they capture."""
    known = inspect.signature(original)

    @wraps(original)
    def capture(manager: Any, *args: Any, **kwargs: Any) -> Any:
        _note(manager, lambda: _parts_of_drafter(known, known.bind(manager, *args, **kwargs).arguments["forward_fn"]))
        return original(manager, *args, **kwargs)

    return capture


def _parts_of_target(model: Any) -> Parts:
    return Parts("target.forward", graph_sites.target_sites(model), graph_sites.TARGET_REST)


def _parts_of_drafter(known: inspect.Signature, forward: Any) -> Parts:
    model = forward.__self__.model
    in_graph = any(name in known.parameters for name in CONTEXT_IN_GRAPH)
    return Parts("draft.forward", graph_sites.drafter_sites(model, in_graph), graph_sites.drafter_rest(model))


def _note(manager: Any, parts: Callable[[], Parts]) -> None:
    try:
        if manager not in kept.parts:
            kept.parts[manager] = parts()
    except Exception as error:
        _failed(type(manager).__name__, error)


def _twice(original: Function) -> Function:
    """Capture as vLLM does, and then the FULL graphs once more with marks."""

    @wraps(original)
    def capture(manager: Any, create_forward_fn: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(manager, create_forward_fn, *args, **kwargs)
        parts = kept.parts.get(manager)
        if parts is not None and getattr(manager, "_max_full_descs_to_capture", None) is None:
            try:
                _mark(manager, parts, create_forward_fn, lambda make: original(manager, make, *args, **kwargs))
            except Exception as error:
                _failed(parts.span, error)
            _tell(not_timed(parts))
        return result

    return capture


def _tell(missing: dict[str, str]) -> None:
    """Say which parts are not timed, those with the same reason at once."""
    for why in dict.fromkeys(missing.values()):
        _log.warning("spantrace: not timed: %s: %s", ", ".join(name for name in missing if missing[name] == why), why)


def _mark(manager: Any, parts: Parts, create: Any, capture: Callable[[Any], Any]) -> None:
    """Capture the twins, keep those that have parts with names, and measure what their marks cost."""
    if not any(not site.why for site in parts.sites):
        return
    layouts = dict[Any, tuple[str, ...]]()
    plain, descriptions = manager.graphs, manager._capture_descs
    manager.graphs = {}
    manager._capture_descs = {mode: found for mode, found in descriptions.items() if mode.name == "FULL"}
    try:
        if manager._capture_descs:
            capture(_marking(parts, create, layouts))
        twins = manager.graphs
    finally:
        manager.graphs, manager._capture_descs = plain, descriptions
    made = {
        key: MarkedGraph(plain[key], twins[key], names, parts.events)
        for key, names in layouts.items()
        if key in plain and key in twins and sum(map(bool, names)) > 1
    }
    if made:
        _measure(parts, list(made.values())[-1])
        there = [one for one in parts.graphs if one[0].get(one[1]) is one[2].plain]
        parts.graphs = there + [(plain, key, graph) for key, graph in made.items()]


def _marking(parts: Parts, create: Any, layouts: dict[Any, tuple[str, ...]]) -> Any:
    """A stand-in for what makes the forward of a graph: the graph that it is captured into gets marks."""
    import torch

    def create_forward_fn(description: Any, *args: Any, **kwargs: Any) -> Any:
        forward = create(description, *args, **kwargs)

        def run(mode: Any) -> Any:
            if not torch.cuda.is_current_stream_capturing() or getattr(description, "num_ubatches", 1) > 1:
                return forward(mode)
            marks = Marks(parts.events)
            with graph_sites.marked(parts.sites, marks.end):
                marks.begin()
                result = forward(mode)
            parts.seen.update(filter(None, marks.parts))
            marks.end(parts.rest)
            layouts[description] = tuple(marks.parts)
            return result

        return run

    return create_forward_fn


def _measure(parts: Parts, graph: MarkedGraph) -> None:
    """On the graph that was captured last, whose inputs are still those of its capture."""
    import torch

    torch.cuda.synchronize()
    kept.empty_ns = kept.empty_ns or graph_capture.empty_pair_ns()
    parts.ms = graph_capture.replay_ms(graph)
    plain, marked = parts.ms
    _log.warning(
        "spantrace: graph spans of %s: a replay takes %.3f ms, with %d marks %.3f; a pair of marks reads %.2f us",
        parts.span,
        plain,
        len(graph.parts) + 1,
        marked,
        kept.empty_ns / 1e3,
    )
