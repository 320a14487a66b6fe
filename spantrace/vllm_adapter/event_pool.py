"""The timing events of a process on a GPU, made once and kept, and the clock that is read with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from spantrace.gpu_clock import GpuClock
from spantrace.vllm_adapter.description import gpu_of_this_process

BREATH_S = 0.0003
"""Pause between two bits of work off the server's threads, so that they get the interpreter in between."""
POOL = 12288
"""Events for a thousand cycles, which are then read after the recording only."""
CREATED_AT_ONCE = 16
_pool: list[Any] = []
"""The process's timing events, kept for the next recording."""


def make_gpu_clock() -> tuple[GpuClock | None, float | None]:
    """A clock on this process's GPU and what recording one event costs in ns; (None, None) without a GPU."""
    gpu = gpu_of_this_process()
    if gpu is None:
        return None, None
    import torch

    with torch.cuda.device(gpu):
        side = torch.cuda.Stream()
        while len(_pool) < POOL:
            _pool.extend(_used_once(side) for _ in range(CREATED_AT_ONCE))
            time.sleep(BREATH_S)
        costs = [_time_record(event, side) for event in _pool[:200]]
    return GpuClock(_pool, torch.cuda.current_stream, _record_event()), float(median(costs))


def _record_event() -> Callable[[Any, Any], object]:
    """What records an event on a stream: torch's class in C, under the one in Python that would look the stream up."""
    import torch

    record: Callable[[Any, Any], object] = super(torch.cuda.Event, torch.cuda.Event).record
    return record


def _used_once(stream: Any) -> Any:
    """A timing event that has been recorded: torch creates the CUDA event at its first record."""
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def _time_record(event: Any, stream: Any) -> int:
    record = _record_event()
    begin = time.perf_counter_ns()
    record(event, stream)
    return time.perf_counter_ns() - begin
