"""The GPU clock shares marks, keeps to its budget, never waits, and survives a failing event."""

from __future__ import annotations

import numpy as np

from spantrace.gpu_clock import BUDGET, GpuClock


class Device:
    """A GPU whose events pass `lag` ms after they are recorded."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000
        self.lag_ms = 0.5
        self.lookups = 0

    def stream(self) -> str:
        self.lookups += 1
        return "stream"


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_ms = float("inf")

    def record(self, stream: str) -> None:
        assert stream == "stream"
        self.at_ms = self.device.now_ns / 1e6 + self.device.lag_ms

    def query(self) -> bool:
        return self.at_ms <= self.device.now_ns / 1e6

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query()
        return float(np.float32(other.at_ms - self.at_ms))


def clock_on(device: Device, size: int) -> GpuClock:
    clock = GpuClock([Event(device) for _ in range(size + 1)], device.stream)
    clock.new_cycle()
    return clock


def span(clock: GpuClock, device: Device, length_ns: int, row: int = 1, follows: bool = False) -> None:
    opened = (clock.follow() if follows else clock.open()) if clock.timing else -1
    start = device.now_ns
    device.now_ns += length_ns
    if clock.timing:
        clock.close(row, start, device.now_ns, opened)


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
    ((row, host_start, host_end, gpu_start, gpu_end),) = read_all(clock)
    assert (row, host_start, host_end) == (1, start, start + 2_000_000)
    assert gpu_end - gpu_start == 2_000_000
    assert device.lookups == 1


def test_a_following_span_shares_an_event_and_another_does_not() -> None:
    device = Device()
    clock = clock_on(device, 16)
    span(clock, device, 1_000_000)
    device.now_ns += 5_000_000
    span(clock, device, 1_000_000, follows=True)
    assert clock.records() == 3
    span(clock, device, 1_000_000)
    assert clock.records() == 5
    device.now_ns += 10_000_000
    (_, _, _, _, first_end), (_, _, _, second_start, _), _ = read_all(clock)
    assert first_end == second_start


def test_the_budget_of_a_cycle_is_kept_and_what_is_left_out_is_counted() -> None:
    device = Device()
    clock = clock_on(device, 64)
    for _ in range(BUDGET):
        span(clock, device, 1_000_000)
        device.now_ns += 1_000_000
    assert clock.unread() == BUDGET
    assert clock.skipped == BUDGET // 2
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
    class Broken(Event):
        def record(self, stream: str) -> None:
            raise RuntimeError("no device")

    device = Device()
    clock = GpuClock([Broken(device) for _ in range(9)], device.stream)
    clock.new_cycle()
    span(clock, device, 1_000_000)
    assert clock.errors == 1
    assert "no device" in clock.first_error
    assert read_all(clock) == []


def test_nothing_is_recorded_before_the_first_cycle_or_after_the_end() -> None:
    device = Device()
    clock = GpuClock([Event(device) for _ in range(9)], device.stream)
    span(clock, device, 1_000_000)
    assert clock.records() == 0
    clock.new_cycle()
    span(clock, device, 1_000_000)
    clock.end()
    span(clock, device, 1_000_000)
    assert clock.records() == 2


def test_a_following_span_takes_the_last_mark_of_its_own_cycle_only() -> None:
    device = Device()
    clock = clock_on(device, 16)
    span(clock, device, 1_000_000)
    assert clock.follow() == 1
    clock.new_cycle()
    assert clock.follow() == 2


def test_a_cycle_that_is_not_to_be_timed_has_no_events() -> None:
    device = Device()
    clock = clock_on(device, 64)
    for timed in (True, False, True):
        clock.new_cycle(timed)
        assert bool(clock.timing) is timed
        span(clock, device, 1_000_000)
        device.now_ns += 1_000_000
    assert (clock.cycles, clock.records(), clock.skipped) == (3, 4, 0)
