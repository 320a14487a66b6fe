"""What one CUDA timing event costs the host on this machine: through torch, and as spantrace records it."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from spantrace.cuda_events import CudaEvents, Stream, loaded_runtime
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
    torch.zeros(1, device="cuda")
    library = loaded_runtime()
    assert isinstance(library, str)
    events, stream = CudaEvents(library), torch.cuda.current_stream()
    raw, torch_event = Stream(stream.cuda_stream), torch.cuda.Event(enable_timing=True)
    first, second = events.create(), events.create()
    events.record(first, raw)
    events.record(second, raw)
    torch.cuda.synchronize()
    clock = GpuClock(events, [events.create() for _ in range(5001)], lambda: raw)

    def span() -> None:
        clock.new_cycle()
        opened = clock.open()
        clock.marked(0, 0, opened, clock.mark(opened))

    print(f"torch event.record()           {nanoseconds(torch_event.record):8.0f} ns")
    print(f"torch event.record(stream)     {nanoseconds(lambda: torch_event.record(stream)):8.0f} ns")
    print(f"CudaEvents.record              {nanoseconds(lambda: events.record(first, raw)):8.0f} ns")
    torch.cuda.synchronize()
    print(f"CudaEvents.passed              {nanoseconds(lambda: events.passed(first)):8.0f} ns")
    events.record(second, raw)
    torch.cuda.synchronize()
    print(f"CudaEvents.elapsed_ms          {nanoseconds(lambda: events.elapsed_ms(first, second)):8.0f} ns")
    print(f"GpuClock, a span of two marks  {nanoseconds(span):8.0f} ns")


if __name__ == "__main__":
    main()
