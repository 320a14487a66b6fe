"""What one CUDA timing event costs the host on this machine, and a GPU span of two."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from spantrace.gpu_clock import GpuClock


def nanoseconds(call: Callable[[], object], calls: int = 2000) -> float:
    """The median time of one call."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return median(times)


def main() -> None:
    """Print one line a way."""
    stream = torch.cuda.current_stream()
    event, other = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    event.record(stream)
    other.record(stream)
    torch.cuda.synchronize()
    clock = GpuClock([torch.cuda.Event(enable_timing=True) for _ in range(5001)], torch.cuda.current_stream)

    def span() -> None:
        clock.new_cycle()
        clock.close(0, 0, 0, clock.open())

    print(f"event.elapsed_time(other)      {nanoseconds(lambda: event.elapsed_time(other)):8.0f} ns")
    print(f"event.query()                  {nanoseconds(event.query):8.0f} ns")
    print(f"event.record()                 {nanoseconds(event.record):8.0f} ns")
    print(f"event.record(stream)           {nanoseconds(lambda: event.record(stream)):8.0f} ns")
    print(f"GpuClock, a span of two marks  {nanoseconds(span):8.0f} ns")


if __name__ == "__main__":
    main()
