"""Stacks of a span's thread: seen with function and line, on the thread alone, and nothing is left on it afterwards."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyinstrument")

from pyinstrument import stack_sampler
from recordings import cycles_of, header, spans_of

from spantrace.errors import SpantraceError
from spantrace.explaining import stacks as stacks_module
from spantrace.explaining.stacks import Stacks
from spantrace.explaining.tree import nodes_of, session_of
from spantrace.explaining.within import within
from spantrace.frames import Frame, packed, plain_rows, unpack_rows
from spantrace.recorder import Recorder, Site
from spantrace.recording import Recording
from spantrace.spans import Track

pytestmark = pytest.mark.timed

BUSY_S = 0.002
SLOW_LINE = sys._getframe().f_lineno + 6


def slow_on_purpose() -> None:
    """Busy for so long, on one line."""
    end = time.perf_counter() + BUSY_S
    while time.perf_counter() < end:
        abs(-1)


def sample() -> None:
    """What the span is."""
    slow_on_purpose()


class Looping:
    """A thread that calls a recorded function again and again, and says what profile function it has."""

    def __init__(self, stacks: Stacks, setup: Callable[[], None] = lambda: None) -> None:
        self._setup = setup
        self.recorder = Recorder(delays=stacks)
        self._call = self.recorder.wrap(sample, Site("sample", 0))
        self.going, self.resting = threading.Event(), False
        self.gate = threading.Lock()
        self.profiled: list[Any] = []
        self.fresh = False
        self.calls = 0
        self.thread = threading.Thread(target=self._run, name="looping")

    def _run(self) -> None:
        self._setup()
        while not self.going.is_set():
            self._call()
            self.calls += 1
            if self.resting:
                self.gate.acquire()
                self.resting = False
        self.profiled.append(sys.getprofile())
        self.fresh = not hasattr(stack_sampler.thread_locals, "stack_sampler")
        sys.setprofile(None)

    def made(self, calls: int) -> None:
        """Wait until so many more calls were made."""
        wanted, deadline = self.calls + calls, time.monotonic() + 30
        while self.calls < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@contextmanager
def looping(stacks: Stacks, setup: Callable[[], None] = lambda: None) -> Iterator[Looping]:
    """The thread, for as long as the block."""
    one = Looping(stacks, setup)
    one.thread.start()
    try:
        yield one
    finally:
        one.going.set()
        one.thread.join(10)
        assert not one.thread.is_alive()


def texts(thread: Frame) -> list[list[str]]:
    """The stack of each sample."""
    rows = unpack_rows(packed(thread))
    assert (np.diff(rows[:, 0]) > 0).all()
    return [[thread["frames"][one] for one in thread["stacks"][number]] for number in rows[:, 1].tolist()]


def test_the_slow_function_is_seen_and_nothing_is_left() -> None:
    stacks = Stacks()
    with looping(stacks) as loop:
        assert stacks.begin("sample") == 1
        loop.made(50)
        answer = stacks.end()
        loop.made(2)
    (thread,) = answer["threads"]
    assert (answer["refused"], answer["left"], thread["thread"], thread["failure"]) == ("", True, "looping", "")
    seen = texts(thread)
    assert len(seen) > 200
    slow = [stack for stack in seen if any(frame.startswith("slow_on_purpose\0") for frame in stack)]
    assert len(slow) > 0.9 * len(seen)
    assert loop.profiled == [None]
    assert loop.fresh
    assert loop.recorder.errors == 0


def test_the_tree_has_the_functions_line_and_the_spans_time() -> None:
    stacks = Stacks()
    with looping(stacks) as loop:
        began = time.perf_counter_ns()
        stacks.begin("sample")
        loop.made(40)
        answer = stacks.end()
        window = (began, time.perf_counter_ns())
        (rows,) = [frame for frame in loop.recorder.drain() if frame["type"] == "rows"]
    found = within(_recording(unpack_rows(packed(rows))), [(window, [answer])], "sample")
    assert found.left
    assert found.cycles >= 40
    assert 0.3 < found.covered < 1.2
    nodes = nodes_of(session_of(found, "sample", 0.0))
    assert [node.function for node in nodes][:2] == ["sample", "slow_on_purpose"]
    slow = nodes[1]
    assert slow.file.endswith("test_stacks.py")
    assert abs(slow.line - SLOW_LINE) <= 1
    assert slow.seconds > 0.9 * nodes[0].seconds
    assert nodes[0].seconds == pytest.approx(found.covered * found.ns / 1e9)


def _recording(rows: Any) -> Recording:
    """Each call of the thread is a cycle."""
    times = [(int(start), int(end)) for _, start, end in rows.tolist()]
    spans = spans_of(("sample", Track.HOST, index, *one) for index, one in enumerate(times))
    return Recording(header(lanes=[{"process": 0, "thread": "main"}]), cycles_of(times), spans)


def test_samples_of_calls_shorter_than_the_interval_stand_for_their_time() -> None:
    """Calls of 40 us, of which 30 are in `late`: every fifth is hit, at all places alike."""
    us = 1000
    starts = [index * 50 * us for index in range(1000)]
    seen = [(at, int(at % (50 * us) >= 10 * us)) for at in range(3 * us, 1000 * 50 * us, 101 * us)]
    thread = {"thread": "main", "failure": "", "frames": ["f\0a.py\0001", "early\0a.py\0002", "late\0a.py\0003"]}
    thread |= {"stacks": [[0, 1], [0, 2]], **plain_rows(np.array(seen, dtype=np.int64))}
    rows = np.array([(0, start, start + 40 * us) for start in starts], dtype=np.int64)
    answer = {"threads": [thread], "left": True, "paths": [], "prefixes": []}
    found = within(_recording(rows), [((0, 10**9), [answer])], "sample")
    assert found.ns == 1000 * 40 * us
    assert found.covered == pytest.approx(1.0, abs=0.05)
    late = sum(seconds for stack, seconds in found.records if stack[-1].startswith("late"))
    assert late == pytest.approx(0.75 * found.covered * found.ns / 1e9, rel=0.05)


def test_a_thread_that_sleeps_is_woken_to_be_left() -> None:
    stacks = Stacks(lambda: loop.gate.release())
    with looping(stacks) as loop:
        stacks.begin("sample")
        loop.made(5)
        loop.gate.acquire()
        loop.resting = True
        time.sleep(0.1)
        answer = stacks.end()
        assert answer["left"]
        assert not loop.resting
        loop.made(2)
    assert loop.profiled == [None]


def test_a_thread_that_nobody_wakes_is_left_once_it_wakes_by_itself() -> None:
    stacks = Stacks()
    with looping(stacks) as loop:
        stacks.begin("sample")
        loop.made(5)
        loop.gate.acquire()
        loop.resting = True
        time.sleep(0.1)
        assert not stacks.end()["left"]
        loop.gate.release()
        loop.made(2)
        assert stacks.end()["left"]
    assert loop.profiled == [None]


def test_another_profiler_is_named_and_left_alone() -> None:
    def theirs(*_: object) -> None:
        """A profile function of somebody else."""

    stacks = Stacks()
    with looping(stacks, lambda: sys.setprofile(theirs)) as loop:
        stacks.begin("sample")
        loop.made(5)
        answer = stacks.end()
    assert answer["threads"] == []
    assert "test_another_profiler_is_named_and_left_alone.<locals>.theirs already profiles" in answer["refused"]
    assert "the thread looping" in answer["refused"]
    assert loop.profiled == [theirs]


def test_a_running_pyinstrument_is_named() -> None:
    from pyinstrument import Profiler

    stacks, profiler = Stacks(), Profiler()
    with looping(stacks, lambda: profiler.start()) as loop:
        stacks.begin("sample")
        loop.made(5)
        answer = stacks.end()
    assert answer["refused"] == "pyinstrument already profiles the thread looping"


def test_a_torch_profiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        _is_profiler_enabled = True

    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", Busy)  # type: ignore[arg-type]
    with pytest.raises(SpantraceError, match=r"torch\.profiler.* is already at work in process \d+; wait until"):
        Stacks().begin("sample")


def test_without_pyinstrument_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyinstrument.stack_sampler", None)  # type: ignore[arg-type]
    with pytest.raises(SpantraceError, match=r"environment has no pyinstrument; .* -m pip install pyinstrument"):
        Stacks().begin("sample")


def test_a_failure_in_a_sample_does_not_reach_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(stacks_module, "round", broken, raising=False)
    stacks = Stacks()
    with looping(stacks) as loop:
        stacks.begin("sample")
        loop.made(10)
        answer = stacks.end()
        loop.made(10)
    assert answer["threads"][0]["failure"] == "RuntimeError: broken on purpose"
    assert answer["left"]
    assert loop.profiled == [None]


def test_samples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks_module, "MOST_SAMPLES", 20)
    stacks = Stacks()
    with looping(stacks) as loop:
        stacks.begin("sample")
        loop.made(30)
        answer = stacks.end()
    assert len(texts(answer["threads"][0])) == 20
    assert loop.profiled == [None]


def test_no_function_of_the_span_is_no_place() -> None:
    stacks = Stacks()
    Recorder(delays=stacks).wrap(sample, Site("sample", 0))
    assert stacks.begin("schedule") == 0
    assert stacks.begin("sample") == 1
    stacks.end()
