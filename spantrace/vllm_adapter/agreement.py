"""What was chosen when a server started is on on every rank or on none: its engine asks them all once it runs.

Each process applies the choice by itself (`spantrace.vllm_adapter.choice`), and that can fail on one rank alone, as the
self-test of an optimization on its own GPU may.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import psutil

from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.vllm_adapter import choice
from spantrace.vllm_adapter.engine_thread import between_steps, look
from spantrace.vllm_adapter.servers import role_of

LOOK_S = 0.5
_log = logging.getLogger("spantrace")


def keep() -> None:
    """Wait for the engine, where this is its process, and take back everywhere what one process could not apply.

    Called on a thread of its own. What is captured in CUDA graphs cannot be taken back; it is warned of.
    """
    if role_of(" ".join(psutil.Process().cmdline())) != "engine":
        return
    while (engine := look()) is None:
        time.sleep(LOOK_S)
    told = between_steps(engine, lambda: _everywhere(engine, tell))
    refused = {name: why for one in told for name, why in one["refused"].items()}
    if partly := sorted(refused.keys() & {name for one in told for name in one["on"]}):
        why = refused[partly[0]].partition(", because ")[2]
        answers = between_steps(engine, lambda: _everywhere(engine, give_up, partly, why))
        if failures := [answer["failure"] for answer in answers if answer["failure"]]:
            _log.warning("spantrace: %s is on in some processes only: %s", ", ".join(partly), failures[0])


def _everywhere(engine: Any, method: Callable[..., Frame], *arguments: Any) -> list[Frame]:
    """On the engine's thread: what every worker and this process answer."""
    return [*engine.model_executor.collective_rpc(method, args=arguments), method(None, *arguments)]


def tell(_: Any) -> Frame:
    """Called in each process: what is on there, and what it could not apply, with the reasons."""
    return {"on": [one["id"] for one in choice.counts()], "refused": choice.refusals()}


def give_up(_: Any, names: list[str], why: str) -> Frame:
    """Called in each process: these are off there from now on, because another one could not apply them."""
    try:
        choice.plan([], names).put_into_force()
    except Exception as error:
        return {"failure": str(error)}
    choice.refuse(names, SpantraceError(why))
    return {"failure": ""}
