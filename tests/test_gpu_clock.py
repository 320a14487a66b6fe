"""The GPU clock shares marks, keeps to its budget, never waits, and survives a failing event."""

from __future__ import annotations

import numpy as np

from spantrace.gpu_clock import BUDGET, SHARE_NS, GpuClock


class Device:
    """A GPU whose events pass `lag` ms after they are recorded; an event is a list that holds when."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000
        self.lag_ms = 0.5
        self.lookups = 0

    def clock(self) -> int:
        return self.now_ns

    def stream(self) -> str:
        self.lookups += 1
        return "stream"

    def record(self, event: list[float], stream: str) -> None:
        assert stream == "stream"
        event[:] = [self.now_ns / 1e6 + self.lag_ms]

    def passed(self, event: list[float]) -> bool:
        return bool(event) and event[0] <= self.now_ns / 1e6

    def elapsed_ms(self, first: list[float], second: list[float]) -> float:
        assert self.passed(first)
        assert self.passed(second)
        return float(np.float32(second[0] - first[0]))


def clock_on(device: Device, size: int) -> GpuClock:
    clock = GpuClock(device, [[] for _ in range(size + 1)], device.stream, device.clock)
    clock.new_cycle()
    return clock


def span(clock: GpuClock, device: Device, length_ns: int, row: int = 1) -> None:
    start = device.now_ns
    first = clock.open()
    device.now_ns += length_ns
    clock.marked(row, start, first, clock.mark(first))


def read_all(clock: GpuClock) -> list[tuple[int, ...]]:
    while clock.resolve():
        pass
    return list(clock.spans())


def test_a_span_has_its_length_and_its_host_start() -> None:
    device = Device()
    clock = clock_on(device, 16)
    start = device.now_ns
    span(clock, device, 2_000_000)
    assert read_all(clock) == []
    device.now_ns += 10_000_000
    ((row, host_start, host_mark, gpu_start, gpu_end),) = read_all(clock)
    assert (row, host_start, host_mark) == (1, start, start)
    assert gpu_end - gpu_start == 2_000_000
    assert device.lookups == 1


def test_adjacent_spans_share_an_event_and_distant_ones_do_not() -> None:
    device = Device()
    clock = clock_on(device, 16)
    span(clock, device, 1_000_000)
    device.now_ns += SHARE_NS - 1
    span(clock, device, 1_000_000)
    assert clock.unread() == 3
    device.now_ns += SHARE_NS + 1
    span(clock, device, 1_000_000)
    assert clock.unread() == 5


def test_a_short_span_does_not_share_its_own_start() -> None:
    device = Device()
    clock = clock_on(device, 16)
    span(clock, device, 100)
    device.now_ns += 10_000_000
    ((_, _, _, start, end),) = read_all(clock)
    assert end - start == 100


def test_the_budget_of_a_cycle_is_kept_and_what_is_left_out_is_counted() -> None:
    device = Device()
    clock = clock_on(device, 64)
    for _ in range(BUDGET):
        span(clock, device, 1_000_000)
        device.now_ns += 1_000_000
    assert clock.unread() == BUDGET
    assert clock.skipped == BUDGET
    clock.new_cycle()
    span(clock, device, 1_000_000)
    assert clock.unread() == BUDGET + 2


def test_a_full_pool_skips_instead_of_waiting() -> None:
    device = Device()
    device.lag_ms = 1e9
    clock = clock_on(device, 8)
    for _ in range(10):
        clock.new_cycle()
        span(clock, device, 1_000_000)
        device.now_ns += 1_000_000
    assert clock.unread() == 8
    assert clock.skipped > 0
    assert clock.resolve() == 0


def test_long_recordings_are_reanchored_and_keep_their_precision() -> None:
    device = Device()
    clock = clock_on(device, 32)
    lengths = []
    for _ in range(400):
        clock.new_cycle()
        span(clock, device, 1_234_567)
        device.now_ns += 500_000_000
        lengths += [end - start for _, _, _, start, end in read_all(clock)]
    assert len(lengths) == 400
    assert max(abs(length - 1_234_567) for length in lengths) < 1_000


def test_a_failing_event_is_counted_and_never_raised() -> None:
    class Broken(Device):
        def record(self, event: list[float], stream: str) -> None:
            raise RuntimeError("no device")

    device = Broken()
    clock = clock_on(device, 8)
    span(clock, device, 1_000_000)
    assert clock.errors == 1
    assert "no device" in clock.first_error
    assert read_all(clock) == []


def test_nothing_is_recorded_before_the_first_cycle_or_after_the_end() -> None:
    device = Device()
    clock = GpuClock(device, [[] for _ in range(9)], device.stream, device.clock)
    span(clock, device, 1_000_000)
    assert clock.records() == 0
    clock.new_cycle()
    span(clock, device, 1_000_000)
    clock.close()
    span(clock, device, 1_000_000)
    assert clock.records() == 2


def test_a_following_span_takes_the_last_mark_of_its_own_cycle_only() -> None:
    device = Device()
    clock = clock_on(device, 16)
    span(clock, device, 1_000_000)
    device.now_ns += 5_000_000
    assert clock.follow() == 1
    clock.new_cycle()
    assert clock.follow() == 2
