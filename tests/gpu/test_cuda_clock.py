"""The GPU clock on real CUDA events: right times, no waiting, spans on the host's clock."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import pytest

from spantrace.clock_offset import clock_offset
from spantrace.recorder import Recorder, Site

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
SLEEP = 2_000_000
PRECISION_NS = 50_000
"""How far off GPU times may lie on the host's clock, where nothing interrupts the host at a bad moment."""


def recorder() -> Recorder:
    from spantrace.vllm_adapter.event_pool import make_gpu_clock

    torch.ones(1 << 20, device="cuda").sum().item()
    clock, cost = make_gpu_clock()
    assert clock is not None
    assert cost is not None
    assert 0 < cost < 100_000
    clock.new_cycle()
    return Recorder(gpu=clock)


def gpu_rows(recorder: Recorder) -> list[tuple[int, ...]]:
    assert recorder.gpu is not None
    torch.cuda.synchronize()
    assert recorder.gpu.errors == 0, recorder.gpu.first_error
    while recorder.gpu.resolve():
        pass
    return list(recorder.gpu.spans())


def test_a_span_is_as_long_as_its_kernels() -> None:
    """Each span is compared with its neighbour in time, since other processes may share the GPU."""
    instrument = recorder()
    assert instrument.gpu is not None
    sleep = instrument.wrap(lambda: torch.cuda._sleep(SLEEP), Site("target.forward", 0, gpu=True))
    beside = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        instrument.gpu.new_cycle()
        sleep()
        begin.record()
        torch.cuda._sleep(SLEEP)
        end.record()
        end.synchronize()
        beside.append(begin.elapsed_time(end) * 1e6)
    lengths = [stop - start for *_, start, stop in gpu_rows(instrument)]
    assert len(lengths) == 9
    assert median(length / other for length, other in zip(lengths, beside, strict=True)) == pytest.approx(1, rel=0.1)


def test_marking_never_waits_for_a_busy_stream() -> None:
    instrument = recorder()
    assert instrument.gpu is not None
    torch.cuda._sleep(400_000_000)
    began = time.perf_counter()
    instrument.gpu.close(0, 1, 2, instrument.gpu.open())
    assert instrument.gpu.resolve() == 0
    assert time.perf_counter() - began < 0.01
    torch.cuda.synchronize()
    assert instrument.gpu.resolve() == 2


def test_a_thousand_cycles_keep_their_order_and_lie_on_the_hosts_clock() -> None:
    early, late = zip(*(misplaced(1000) for _ in range(5)), strict=True)
    assert median(early) < PRECISION_NS, early
    assert median(late) < PRECISION_NS, late


def misplaced(cycles: int) -> tuple[int, int]:
    """By how many ns the worst GPU span of as many cycles begins before its launch, or ends after the wait for it."""
    instrument = recorder()
    assert instrument.gpu is not None
    sleep = instrument.wrap(lambda: torch.cuda._sleep(20_000), Site("target.forward", 0, gpu=True))
    bounds = []
    for _ in range(cycles):
        instrument.gpu.new_cycle()
        before = time.perf_counter_ns()
        sleep()
        torch.cuda.synchronize()
        bounds.append((before, time.perf_counter_ns()))
    rows = np.array(gpu_rows(instrument), dtype=np.int64)
    assert len(rows) == cycles
    start, end = rows[:, 3:].T + clock_offset(rows)
    assert (start[1:] > end[:-1]).all()
    launched, waited = np.array(bounds, dtype=np.int64).T
    return int((launched - start).max()), int((end - waited).max())


def test_no_more_events_a_cycle_than_the_budget() -> None:
    instrument = recorder()
    assert instrument.gpu is not None
    sleep = instrument.wrap(lambda: torch.cuda._sleep(100_000), Site("target.forward", 0, gpu=True))
    for _ in range(20):
        sleep()
        time.sleep(0.0001)
    assert instrument.gpu.unread() == 10
    assert instrument.gpu.skipped == 15
