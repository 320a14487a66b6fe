"""The GPU clock on real CUDA events: right times, no waiting, spans on the host's clock."""

from __future__ import annotations

import time

import numpy as np
import pytest

from spantrace.joining import _offset
from spantrace.recorder import Recorder, Site

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
SLEEP = 2_000_000


def recorder() -> Recorder:
    from spantrace.vllm_adapter.session import make_gpu_clock

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
    instrument = recorder()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    sleep = instrument.wrap(lambda: torch.cuda._sleep(SLEEP), Site("target.forward", 0, gpu=True))
    for _ in range(3):
        sleep()
    torch.cuda.synchronize()
    begin.record()
    torch.cuda._sleep(SLEEP)
    end.record()
    *_, (_, _, _, start, stop) = gpu_rows(instrument)
    assert (stop - start) / 1e6 == pytest.approx(begin.elapsed_time(end), rel=0.1)


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
    instrument = recorder()
    assert instrument.gpu is not None
    sleep = instrument.wrap(lambda: torch.cuda._sleep(20_000), Site("target.forward", 0, gpu=True))
    for _ in range(1000):
        instrument.gpu.new_cycle()
        sleep()
        torch.cuda.synchronize()
    after = time.perf_counter_ns()
    rows = np.array(gpu_rows(instrument), dtype=np.int64)
    assert len(rows) == 1000
    start = rows[:, 3] + _offset(rows)
    assert (np.diff(start) > 0).all()
    late = start - rows[:, 1]
    assert np.median(late) < 50_000
    assert late.min() >= -50_000, "the opening event is recorded just before the host reads its clock"
    assert start[-1] < after


def test_no_more_events_a_cycle_than_the_budget() -> None:
    instrument = recorder()
    assert instrument.gpu is not None
    sleep = instrument.wrap(lambda: torch.cuda._sleep(100_000), Site("target.forward", 0, gpu=True))
    for _ in range(20):
        sleep()
        time.sleep(0.0001)
    assert instrument.gpu.unread() == 10
    assert instrument.gpu.skipped == 15
