"""Runs an action on the engine's own thread, between two of its steps, whether it is busy or idle.

The engine takes its clients' requests from that queue before each step, and waits in it while there is no work. An item
that tells it to wake up and do nothing is put there, and while it is under way the engine's handler of requests is
watched for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from typing import Any, TypeVar

from spantrace.errors import SpantraceError

LONGEST_STEP_S = 60.0
LOOKS, BREATH_S = 200, 0.002
_LOOP, _HANDLER = "run_busy_loop", "_handle_client_request"
Result = TypeVar("Result")
_one_at_a_time = threading.Lock()


def running_engine() -> Any:
    """The engine whose loop runs on this process's main thread; SpantraceError where there is none."""
    for _ in range(LOOKS):
        if (found := look()) is not None:
            return found
        time.sleep(BREATH_S)
    raise SpantraceError("no engine runs its loop in this process; it is still starting, or it ends")


def look() -> Any:
    """The engine by the frames of the main thread; None too where that thread left a frame while it was looked at."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == _LOOP and hasattr(found := frame.f_locals.get("self"), _HANDLER):
            return found
        frame = frame.f_back
    return None


def between_steps(engine: Any, action: Callable[[], Result], timeout: float = LONGEST_STEP_S) -> Result:
    """What `action()` returns or raises; SpantraceError, and it is never run, where the engine does not come to it."""
    future: Future[Result] = Future()
    with _one_at_a_time:
        _ask(engine, future, action)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.cancel():
                raise SpantraceError(f"the engine did not end its step within {timeout:g} s") from None
            return future.result()
        finally:
            vars(engine).pop(_HANDLER, None)


def _ask(engine: Any, future: Future[Result], action: Callable[[], Result]) -> None:
    from vllm.v1.engine import EngineCoreRequestType

    handle = getattr(engine, _HANDLER)

    def handle_or_act(kind: Any, request: Any) -> None:
        if request is not future:
            handle(kind, request)
        elif future.set_running_or_notify_cancel():
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)

    setattr(engine, _HANDLER, handle_or_act)
    engine.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, future))


def reset_prefix_cache() -> str:
    """Empty the prefix cache of this process's engine; why it was refused, nothing where it was done."""
    engine = running_engine()

    def reset() -> str:
        if engine.scheduler.has_requests():
            return "the engine has requests; wait until it is idle"
        return "" if engine.reset_prefix_cache() else "the engine says that blocks of the cache are still in use"

    return between_steps(engine, reset)
