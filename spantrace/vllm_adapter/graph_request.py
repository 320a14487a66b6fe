"""How a server is asked for graphs with marks: where there can be none it is not started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spantrace.errors import SpantraceError
from spantrace.vllm_adapter.gpu_state import gpu_states

GRAPH_SPANS = "SPANTRACE_GRAPH_SPANS"
"""Set to 1 in every process of a server whose graphs are to have twins with marks."""


def refuse_without_graphs(arguments: Sequence[str]) -> None:
    """SpantraceError where `vllm serve ARGUMENTS` would capture no CUDA graph on this machine."""
    if not gpu_states() and not any(Path("/dev").glob("nvidia[0-9]*")):
        raise SpantraceError("--graph-spans: no CUDA graphs here, this machine has no NVIDIA GPU; leave it out")
    if "--enforce-eager" in arguments:
        raise SpantraceError("--graph-spans: no CUDA graphs here, --enforce-eager captures none; leave one of them out")
