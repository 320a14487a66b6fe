"""Traces in the form of torch.profiler's, written by hand: times in whole nanoseconds, a host and a GPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
HOST, THREAD, GPU, STREAM = 4242, 4243, 0, 7
US, MS = 1000, 1_000_000
TOKEN = "hf_" + "x" * 30


def microseconds(nanoseconds: int) -> str:
    """Nanoseconds as the decimal of microseconds that profilers write."""
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03d}"


def event(category: str, name: str, start: int, length: int, pid: Any = HOST, tid: Any = THREAD, **args: Any) -> Event:
    """One whole event; `ts` and `dur` are nanoseconds until they are written."""
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length, "args": args}


def annotation(name: str, start: int, length: int, **where: Any) -> Event:
    """A range that an engine or record_function annotated."""
    return event("user_annotation", name, start, length, **where)


def launch(correlation: int, start: int, length: int = 5 * US, *, graph: bool = False, **where: Any) -> Event:
    """A CUDA call that launches a kernel or a graph."""
    name = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
    return event("cuda_runtime", name, start, length, correlation=correlation, **where)


def kernel(name: str, start: int, length: int, correlation: int, pid: Any = GPU, stream: int = STREAM) -> Event:
    """A kernel on a stream."""
    return event("kernel", name, start, length, pid, stream, correlation=correlation, stream=stream, device=0)


def copied(start: int, length: int, correlation: int, stream: int = STREAM) -> Event:
    """A copy on a stream."""
    return event("gpu_memcpy", "Memcpy DtoH", start, length, GPU, stream, correlation=correlation, stream=stream)


def written(event_: Event) -> str:
    """An event as JSON text, its times as exact decimals where they are whole numbers."""
    whole = {key: event_[key] for key in ("ts", "dur") if isinstance(event_.get(key), int)}
    rest = {key: value for key, value in event_.items() if key not in whole}
    return json.dumps(rest)[:-1] + "".join(f', "{k}": {microseconds(v)}' for k, v in whole.items()) + "}"


def text(events: list[Event], *, gpu: str | None = "NVIDIA H200", base: int = 0) -> str:
    """The whole file, with an environment in it as some recorders write one."""
    properties = json.dumps([{"id": 0, "name": gpu}] if gpu else [])
    body = ",\n".join(written(one) for one in events)
    return (
        f'{{"schemaVersion": 1, "deviceProperties": {properties}, "env": {{"HF_TOKEN": "{TOKEN}"}},\n'
        f' "baseTimeNanoseconds": {base}, "traceEvents": [\n{body}\n], "traceName": "/home/me/{TOKEN}.json"}}\n'
    )


def save(events: list[Event], path: Path, **parts: Any) -> Path:
    """Write the trace, packed where the name says so."""
    data = text(events, **parts).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def cycles(count: int, *, graph: bool = True, steps: bool = True, start: int = 10**15, pid: Any = HOST) -> list[Event]:
    """Cycles of 10 ms: a target's graph of two kernels on two streams that overlap, a drafter's kernel, a copy, a wait.

    The GPU is busy 5 + 1 ms in kernels (6 + 1 ms of kernel time on two streams) and 0.5 ms more in the copy.
    """
    found = []
    for index in range(count):
        at, tie = start + index * 10 * MS, 10 * index + 1
        if steps:
            found.append(annotation(f"ProfilerStep#{index}", at, 10 * MS, pid=pid))
        found += [
            annotation("gpu_model_runner: forward", at + MS, MS, pid=pid),
            launch(tie, at + MS + 10 * US, graph=graph, pid=pid),
            kernel("gemm", at + 2 * MS, 4 * MS, tie),
            kernel("attention", at + 5 * MS, 2 * MS, tie, stream=8),
            annotation("gpu_model_runner: draft", at + 2 * MS, MS, pid=pid),
            annotation("draft.forward", at + 2 * MS + 10 * US, 900 * US, pid=pid),
            launch(tie + 1, at + 2 * MS + 20 * US, graph=graph, pid=pid),
            kernel("draft_gemm", at + 8 * MS, MS, tie + 1),
            event("cuda_runtime", "cudaMemcpyAsync", at + 4 * MS, 10 * US, pid=pid, correlation=tie + 2),
            copied(at + 9 * MS, 500 * US, tie + 2),
            event("cuda_runtime", "cudaEventSynchronize", at + 5 * MS, 4 * MS, pid=pid, correlation=tie + 3),
        ]
    return found
