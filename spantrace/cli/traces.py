"""Sentences about a trace of another profiler: what it is of, and what was read of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spantrace.tables import Fact


def trace_line(header: Mapping[str, Any], smallest: int, largest: int) -> tuple[str, ...]:
    """The profiler, how the cycles were found, the GPU, and the batch where the trace tells it."""
    trace, gpu = header["trace"], header.get("gpu")
    device = str(gpu.get("name")).removeprefix("NVIDIA ") if isinstance(gpu, dict) else "no GPU in it"
    sizes = f"batch {smallest}" + (f" to {largest}" if largest > smallest else "")
    return (f"trace of {trace['source']}", f"cycles by {trace['cycles_by']}", device, *([sizes] if largest else []))


def trace_facts(header: Mapping[str, Any]) -> list[Fact]:
    """What was read, and what was put right without a change to any figure."""
    trace = header.get("trace")
    if not trace:
        return []
    kernels = (
        f"{trace['kernels']:,} kernels ({trace['kernels_in_graphs']:,} in {trace['graph_launches']:,} graph launches)"
    )
    parts = [f"{trace['events']:,} events", kernels, f"{trace['copies']:,} copies"]
    parts += [
        f"{count:,} events {fault}, which is put right" for fault, count in (trace.get("put_right") or {}).items()
    ]
    return [
        Fact(
            "trace",
            (*parts, "what drafts were accepted is not in it", "the profiler slows the host by an unknown part"),
        )
    ]
