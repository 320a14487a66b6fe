"""An action runs on the loop's own thread and between two of its steps, whether the loop is busy or idle."""

from __future__ import annotations

import enum
import queue
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spantrace.errors import SpantraceError
from spantrace.vllm_adapter import engine_thread
from spantrace.vllm_adapter.engine_thread import between_steps, reset_prefix_cache, running_engine


class Kind(enum.Enum):
    """As vLLM's EngineCoreRequestType."""

    ADD = 1
    WAKEUP = 5


class Engine:
    """Has the loop of vLLM's EngineCoreProc: requests first, then a step; idle it waits for requests."""

    def __init__(self) -> None:
        self.input_queue: queue.Queue[tuple[Kind, Any]] = queue.Queue()
        self.waiting = self.running = 0
        self.stepping = self.ending = False
        self.looping, self.in_step, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self.handled: list[Any] = []
        self.scheduler = types.SimpleNamespace(has_requests=lambda: self.waiting > 0)
        self.used = False

    def run_busy_loop(self) -> None:
        self.looping.set()
        while not self.ending:
            while not self.waiting and not self.ending:
                request = self.input_queue.get()
                self._handle_client_request(*request)
            while not self.input_queue.empty():
                self._handle_client_request(*self.input_queue.get_nowait())
            if self.waiting:
                self._process_engine_step()

    def _process_engine_step(self) -> None:
        self.stepping = True
        self.in_step.set()
        assert self.go_on.wait(10)
        self.go_on.clear()
        self.waiting -= 1
        self.stepping = False

    def _handle_client_request(self, kind: Kind, request: Any) -> None:
        self.handled.append((kind, request))
        self.waiting += request if kind is Kind.ADD else 0
        self.ending = self.ending or request == "end"

    def reset_prefix_cache(self) -> bool:
        assert threading.current_thread() is threading.main_thread()
        return not self.used


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.engine", types.SimpleNamespace(EngineCoreRequestType=Kind))  # type: ignore[arg-type]


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[Engine], Any]], Any]]:
    """Runs a function beside an engine whose loop has the main thread; returns what it returned."""
    engine = Engine()

    def run(act: Callable[[Engine], Any]) -> Any:
        answers: list[Any] = []

        def control() -> None:
            try:
                assert engine.looping.wait(10)
                answers.append(act(engine))
            except Exception as error:
                answers.append(error)
            finally:
                engine.go_on.set()
                engine.input_queue.put((Kind.WAKEUP, "end"))

        thread = threading.Thread(target=control)
        thread.start()
        engine.run_busy_loop()
        thread.join()
        assert "_handle_client_request" not in vars(engine)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    yield run
    assert not engine_thread._one_at_a_time.locked()


def test_an_idle_engine_acts_at_once(beside: Any) -> None:
    def act(engine: Engine) -> tuple[Any, ...]:
        found = running_engine()
        return found is engine, between_steps(found, lambda: (threading.current_thread(), engine.stepping))

    assert beside(act) == (True, (threading.main_thread(), False))


def test_a_busy_engine_acts_after_its_step_and_before_the_next(beside: Any) -> None:
    def act(engine: Engine) -> tuple[Any, ...]:
        engine.input_queue.put((Kind.ADD, 2))
        assert engine.in_step.wait(10)
        seen: list[tuple[bool, int]] = []
        asking = threading.Thread(
            target=between_steps, args=(engine, lambda: seen.append((engine.stepping, engine.waiting)))
        )
        asking.start()
        asking.join(0.1)
        assert seen == [], "it is in a step"
        engine.in_step.clear()
        engine.go_on.set()
        asking.join(10)
        assert engine.in_step.wait(10)
        return tuple(seen)

    assert beside(act) == ((False, 1),)


def test_what_the_action_raises_is_raised_and_the_loop_goes_on(beside: Any) -> None:
    def fail() -> None:
        raise ValueError("no")

    def act(engine: Engine) -> str:
        with pytest.raises(ValueError, match="no"):
            between_steps(engine, fail)
        return between_steps(engine, lambda: "still there")

    assert beside(act) == "still there"


def test_an_action_that_was_given_up_is_never_run(beside: Any) -> None:
    ran: list[int] = []

    def act(engine: Engine) -> int:
        engine.input_queue.put((Kind.ADD, 1))
        assert engine.in_step.wait(10)
        with pytest.raises(SpantraceError, match=r"the engine did not end its step within 0.05 s"):
            between_steps(engine, lambda: ran.append(1), timeout=0.05)
        engine.go_on.set()
        return between_steps(engine, lambda: len(engine.handled))

    assert beside(act) > 0
    assert ran == []


def test_the_prefix_cache_is_reset_on_the_engines_thread_and_a_refusal_is_told(beside: Any) -> None:
    def act(engine: Engine) -> list[str]:
        answers = [reset_prefix_cache()]
        engine.used = True
        answers.append(reset_prefix_cache())
        return answers

    assert beside(act) == ["", "the engine says that blocks of the cache are still in use"]


def test_a_process_without_an_engine_says_so() -> None:
    with pytest.raises(SpantraceError, match="no engine runs its loop in this process"):
        running_engine()
