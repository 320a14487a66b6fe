"""A span is held up once a cycle by a known time, within limits, and not at all any more once that is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from journals import rows_of

from spantrace import delays as delays_module
from spantrace.delays import LONGEST_NS, Delays, Held
from spantrace.recorder import Recorder, Site
from spantrace.spans import Track

pytestmark = pytest.mark.timed

NS = 600_000
SHORT = 500_000
"""Less than a delay takes, more than a call without one: a machine's hiccups make a call longer, never shorter."""


class Hooked:
    """Functions of some spans that do nothing, recorded and to be held up as in a process of a server."""

    def __init__(self, *sites: Site, spin: Callable[[int], None] | None = None) -> None:
        self.delays = Delays(spin)
        self.recorder = Recorder(delays=self.delays)
        self.call = [self.recorder.wrap(lambda: None, site) for site in sites]

    def took(self, number: int, *arguments: Any) -> int:
        """Nanoseconds that one call takes by its own row."""
        self.call[number](*arguments)
        ((_, start, end),) = rows_of(self.recorder)
        return int(end - start)


def test_the_first_call_of_a_cycle_is_held_up_and_its_own_row_shows_it() -> None:
    hooked = Hooked(Site("schedule", 0), Site("output.update", 1))
    assert hooked.delays.begin("schedule", NS, seconds=10) == 1
    assert hooked.took(0) < SHORT, "its cycle began before the delay"
    for _ in range(5):
        hooked.delays.new_cycle()
        assert hooked.took(1) < SHORT, "it is not the span to delay"
        assert hooked.took(0) >= NS
        assert hooked.took(0) < SHORT, "it has been held up in this cycle"
    held = hooked.delays.end()
    assert (held.cycles, held.times, held.refused) == (5, 5, 0)
    assert held.ns >= 5 * NS
    hooked.delays.new_cycle()
    assert hooked.took(0) < SHORT
    assert hooked.delays.end() == Held()


def test_a_function_counts_as_what_it_is_inside_the_draft() -> None:
    builder = Site("target.metadata.attention", 0, in_draft="draft.metadata")
    hooked = Hooked(builder, Site("draft.metadata", 1))
    assert hooked.delays.begin("draft.metadata", NS, seconds=10) == 2
    hooked.delays.new_cycle()
    assert hooked.took(0) < SHORT, "that is the target's metadata"
    hooked.delays.enter_draft("whatever propose is called with")
    assert hooked.took(0) >= NS
    assert hooked.took(1) < SHORT
    hooked.delays.begin("target.metadata.attention", NS, seconds=10)
    hooked.delays.new_cycle()
    hooked.delays.enter_draft()
    assert hooked.took(0) < SHORT, "that is the draft's metadata"
    hooked.delays.new_cycle()
    assert hooked.took(0) >= NS


def test_a_cycle_begins_for_the_engines_spans_with_its_turn_and_for_the_workers_with_their_step() -> None:
    hooked = Hooked(Site("output.update", 0), Site("sample", 1))
    for number, span, turn in ((0, "output.update", True), (1, "sample", False)):
        hooked.delays.begin(span, NS, seconds=10)
        hooked.delays.new_cycle(not turn)
        assert hooked.took(number) < SHORT
        hooked.delays.new_cycle(turn)
        assert hooked.took(number) >= NS
        assert hooked.delays.end().cycles == 1


def test_a_delay_ends_by_itself() -> None:
    hooked = Hooked(Site("schedule", 0))
    hooked.delays.begin("schedule", NS, seconds=0.05)
    time.sleep(0.06)
    hooked.delays.new_cycle()
    assert hooked.took(0) < SHORT
    held = hooked.delays.end()
    assert (held.times, held.refused) == (0, 1)


def test_delays_take_no_more_than_their_share_and_none_is_longer_than_the_limit() -> None:
    hooked = Hooked(Site("schedule", 0))
    began = time.perf_counter_ns()
    hooked.delays.begin("schedule", 50 * LONGEST_NS, seconds=10)
    for _ in range(12):
        hooked.delays.new_cycle()
        hooked.took(0)
    elapsed = time.perf_counter_ns() - began
    held = hooked.delays.end()
    assert held.refused > 0
    assert held.times * LONGEST_NS <= delays_module.MOST_SHARE * elapsed + LONGEST_NS


def test_off_the_loops_thread_a_span_sleeps() -> None:
    hooked = Hooked(Site("output.emit", 0, threaded=True))
    hooked.delays.begin("output.emit", LONGEST_NS, seconds=10)
    hooked.delays.new_cycle()
    spent: list[int] = []

    def call() -> None:
        before = time.thread_time_ns()
        hooked.call[0]()
        spent.append(time.thread_time_ns() - before)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert hooked.delays.end().ns >= LONGEST_NS
    assert spent[0] < LONGEST_NS / 2


def test_before_a_launch_the_gpu_is_kept_busy_and_the_host_is_not() -> None:
    spun: list[int] = []
    hooked = Hooked(Site("sample", 0), spin=spun.append)
    assert hooked.delays.begin("sample", NS, seconds=10, track=Track.GPU) == 0, "it launches nothing that is timed"
    launching = hooked.delays.place("target.forward", gpu=True)
    assert hooked.delays.begin("target.forward", NS, seconds=10, track=Track.GPU) == 1
    hooked.delays.new_cycle()
    assert launching
    hooked.delays.hold()
    assert (spun, hooked.delays.end().ns) == ([NS], NS)
    assert Delays().begin("target.forward", NS, seconds=10, track=Track.GPU) == 0


def test_a_delay_that_fails_does_not_reach_the_span() -> None:
    def broken(ns: int) -> None:
        raise RuntimeError("no kernel")

    delays = Delays(broken)
    delays.place("sample", gpu=True)
    delays.begin("sample", NS, seconds=10, track=Track.GPU)
    delays.new_cycle()
    delays.hold()
    assert delays.end() == Held(cycles=1, refused=1)


@pytest.mark.parametrize("ns", [NS, 0])
def test_a_request_is_answered_with_what_the_last_delay_did(ns: int) -> None:
    hooked = Hooked(Site("schedule", 0))
    before = time.perf_counter_ns()
    first = hooked.delays.answer({"span": "schedule", "track": "host", "ns": NS, "seconds": 10.0})
    assert (first["type"], first["places"], first["held"]["times"]) == ("delayed", 1, 0)
    assert before <= first["at_ns"] <= time.perf_counter_ns()
    hooked.delays.new_cycle()
    hooked.took(0)
    second = hooked.delays.answer({"span": "schedule", "track": "host", "ns": ns, "seconds": 10.0})
    assert (second["places"], second["held"]["times"]) == (bool(ns), 1)
