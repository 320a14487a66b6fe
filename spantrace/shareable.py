"""What of a recording's header may leave the machine: a closed list, without command lines, addresses and titles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spantrace.recording import Header
from spantrace.spans import SPAN_NAMES
from spantrace.switched import KEY

TRACE = ("source", "cycles_by", "events", "kernels", "kernels_in_graphs", "graph_launches", "copies")
"""What a trace of another profiler always has."""
_TOP = ("created", "spantrace", "monotonic_to_realtime_ns", "partial", "untold")
_PARTS = {
    "server": (
        "model",
        "drafter",
        "method",
        "num_speculative_tokens",
        "always_drafts",
        "rejection_sample_method",
        "vllm",
        "runner",
        "engine",
        "torch",
        "dtype",
        "async_scheduling",
        "quantization",
        "load_format",
        "enforce_eager",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "prefix_caching",
        "block_size",
        "graph_mode",
        "compile_mode",
        "attention_backend",
        "draft_attention_backend",
        "tensor_parallel",
        "pipeline_parallel",
        "data_parallel",
    ),
    "gpu": ("name", "driver", "sm_mhz", "memory_mhz", "torch", "count"),
    "host": ("cpu", "cores", "python"),
    "trace": TRACE,
    "calibration": ("host_span_ns", "gpu_event_ns", "gpu_events_per_cycle"),
}
_PROCESS = ("pid", "role", "rank", "lost", "hook_errors", "gpu_skipped")
_LANE = ("process", "thread", "gpu")
_GRAPHS, _GRAPH = ("empty_ns",), ("marks", "plain_ms", "marked_ms")
_OPTIMIZATION = ("id", "hits", "fallbacks", "errors")
_LONGEST_TEXT, _LARGEST = 200, 1 << 62
_NUMBERS = {
    *_PROCESS,
    *_OPTIMIZATION,
    *TRACE,
    *_PARTS["calibration"],
    *_GRAPHS,
    *_GRAPH,
    *_TOP,
    "process",
    "sm_mhz",
    "memory_mhz",
    "count",
}
_NUMBERS -= {"role", "id", "source", "cycles_by", "created", "spantrace"}
"""Keys that have numbers; the others may have texts."""


def shareable_header(header: Mapping[str, Any]) -> Header:
    """The parts of the header that say what was measured, how, and how well; of a model's path only its last part."""
    found: Header = _chosen(header, _TOP)
    for name, keys in _PARTS.items():
        part = header.get(name)
        found[name] = _chosen(part, keys) if isinstance(part, dict) else None
    for name in ("model", "drafter"):
        if isinstance(path := (found["server"] or {}).get(name), str):
            found["server"][name] = path.rstrip("/").rsplit("/", 1)[-1]
    if isinstance(gpu := header.get("gpu"), dict):
        found["gpu"] = _gpu(gpu)
    found["left_out"] = {str(name): int(count) for name, count in (header.get("left_out") or {}).items()}
    for name, keys in (("processes", _PROCESS), ("lanes", _LANE), (KEY, _OPTIMIZATION)):
        found[name] = [_chosen(one, keys) for one in header.get(name) or [] if isinstance(one, dict)]
    for process, told in zip(found["processes"], filter(_is_map, header.get("processes") or []), strict=True):
        if _is_map(gpu := told.get("gpu")):
            process["gpu"] = _gpu(gpu)
        if _is_map(graphs := told.get("graph_spans")):
            process["graph_spans"] = _graphs(graphs)
    return found


def _gpu(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of a GPU what it is and how fast, and how many others used it; not which."""
    others = told.get("other_processes")
    return _chosen(told, _PARTS["gpu"]) | ({"other_processes": [0] * len(others)} if isinstance(others, list) else {})


def _graphs(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of the graphs with marks what their figures need; not why a part has none, which is text of an error."""
    spans = told.get("spans")
    known = {name: spans[name] for name in SPAN_NAMES if name in spans} if isinstance(spans, dict) else {}
    parts = {name: _chosen(one, _GRAPH) for name, one in known.items() if _is_map(one)}
    return {**_chosen(told, _GRAPHS), "spans": parts}


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def _chosen(part: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The entries of these keys, where they are numbers, short texts or None."""
    plain = {key: part[key] for key in keys if key in part and _is_plain(part[key], text=key not in _NUMBERS)}
    return {key: value[:_LONGEST_TEXT] if isinstance(value, str) else value for key, value in plain.items()}


def _is_plain(value: object, *, text: bool) -> bool:
    if isinstance(value, (int, float)):
        return -_LARGEST < value < _LARGEST
    return value is None or (text and isinstance(value, str))
