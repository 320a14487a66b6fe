"""A host-only recording of a vLLM that does not load the plugin: its stacks, looked at from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.py_spy import RATE_HZ, sample
from spantrace.recording import Header, Recording
from spantrace.sampled import Samples, Seen, recording_of
from spantrace.vllm_adapter.hooks import SUPPORTED
from spantrace.vllm_adapter.servers import Server, those_of
from spantrace.vllm_adapter.span_functions import SpanFunctions, counted, version_of


def sample_server(
    server: Server, pid: int | None, seconds: float, header: Header, progress: Callable[[int], None]
) -> Recording:
    """Sample a server's engine and workers; SpantraceError where that cannot be, or nothing was seen of a cycle."""
    workers, engine = those_of(server, pid)
    seen = sample(engine.pid, seconds, progress)
    version = version_of(seen.stacks)
    if version is None:
        raise SpantraceError(
            f"no function of vLLM is on the stacks of process {engine.pid}: it is no vLLM, or starting"
        )
    order = [engine.pid, *sorted(worker.pid for worker in workers)]
    functions = SpanFunctions(version or SUPPORTED[-1])
    rows = tuple(
        Seen(order.index(process), main, dict(spans), samples)
        for process, main, spans, samples in counted(seen.stacks, functions)
        if process in order
    )
    if not any("cycle" in one.spans for one in rows):
        raise SpantraceError(
            f"none of the samples of {seen.seconds:.3g} s lie in a cycle; sample for longer while the server has load",
            EXIT_NOT_COMPARABLE,
        )
    told: Header = {"server": {**header["server"], "vllm": version, "model": server.model()}}
    told["gpu"] = gpu_of(header.get("gpus") or [], order)
    roles = ["engine", *("worker" for _ in workers)]
    processes = [{"pid": number, "role": role} for number, role in zip(order, roles, strict=True)]
    samples = Samples(seen.by, RATE_HZ, seen.seconds, seen.failed, seen.cost, rows)
    kept = {name: value for name, value in header.items() if name != "gpus"}
    return recording_of(samples, {**kept, **told, "processes": processes})


def gpu_of(gpus: Sequence[dict[str, Any]], pids: Sequence[int]) -> dict[str, Any] | None:
    """The GPU that these processes are on, as a header holds it; one without a name where that does not show."""
    for gpu in gpus:
        if set(pids) & set(gpu["processes"]):
            known = {name: value for name, value in gpu.items() if name != "processes"}
            return {**known, "other_processes": [pid for pid in gpu["processes"] if pid not in pids]}
    return {"name": "unknown GPU"} if gpus else None
