"""A switch of optimizations in one process of a live server: planned off the loop, in force between two steps.

Each process first plans its part and holds it for as long as the connection lives, so that nothing is changed unless
all of them can. The engine then puts all parts into force on its own thread, in its workers by a call that they run
in turn with their steps.
"""

from __future__ import annotations

from typing import Any

from spantrace.control import Connection
from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.vllm_adapter import choice
from spantrace.vllm_adapter.engine_thread import between_steps, running_engine

PATIENCE_S = 120.0
"""How long a plan is held for the word to put it into force."""
_plans: dict[str, choice.Plan] = {}


def switch(request: Frame, connection: Connection) -> None:
    """Plan what a request wants on and off; on "commit", which only an engine gets, put it into force everywhere."""
    token = str(request["token"])
    _plans[token] = choice.plan(request["on"], request["off"])
    try:
        planned = _plans[token]
        connection.send({"type": "planned", "changes": planned.changes(), "here": planned.here()})
        if (frame := connection.receive(PATIENCE_S)) and frame.get("type") == "commit":
            connection.send({"type": "switched", **_commit(token, bool(frame["workers"]))})
    finally:
        _plans.pop(token, None)


def _commit(token: str, workers: bool) -> Frame:
    engine = running_engine()
    return between_steps(engine, lambda: _everywhere(engine, token, workers))


def _everywhere(engine: Any, token: str, workers: bool) -> Frame:
    """On the engine's thread: all parts, or none where one fails."""

    def call(method: Any) -> list[Frame]:
        answers = engine.model_executor.collective_rpc(method, args=(token,)) if workers else []
        return [*answers, method(None, token)]

    answers = call(put_into_force)
    if failures := [answer["failure"] for answer in answers if answer["failure"]]:
        call(take_back)
        raise SpantraceError(f"nothing was switched, because {failures[0]}")
    return {"ended": [one for answer in answers for one in answer["ended"]]}


def put_into_force(_: Any, token: str) -> Frame:
    """Called in each process between two of its steps: what has been counted by what is off now, and what failed."""
    try:
        return {"ended": _plans[token].put_into_force(), "failure": ""}
    except KeyError:
        return {"ended": [], "failure": "a worker was not asked beforehand; switch from the machine that it runs on"}
    except Exception as error:
        return {"ended": [], "failure": str(error)}


def take_back(_: Any, token: str) -> Frame:
    """Called like `put_into_force`, to undo it."""
    if plan := _plans.get(token):
        plan.take_back()
    return {}
