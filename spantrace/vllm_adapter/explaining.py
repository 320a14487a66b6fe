"""What looks inside the spans of a server's process while a recording asks for it."""

from __future__ import annotations

import contextlib

from spantrace.errors import SpantraceError
from spantrace.explaining.answering import Explainer
from spantrace.vllm_adapter.description import gpu_of_this_process
from spantrace.vllm_adapter.engine_thread import between_steps, running_engine

WAKE_S = 2.0
OTHERS = "/start_profile; end it with /stop_profile"


def make_explainer() -> Explainer:
    """The explainer of a recording of this process; an engine that sleeps is woken to leave its profiler."""
    return Explainer(gpu_of_this_process(), _wake, OTHERS)


def _wake() -> None:
    with contextlib.suppress(SpantraceError):
        between_steps(running_engine(), lambda: None, WAKE_S)
