"""What a client changes in a live server: which optimizations are on, and what is in its prefix cache."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spantrace.control import Connection, ask, connect, default_directory
from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.switched import summed
from spantrace.vllm_adapter.servers import Member, Server

PLAN_TIMEOUT_S = 60.0
SWITCH_TIMEOUT_S = 90.0


class OnNowhere(SpantraceError):
    """What is asked for goes into nothing that the server has loaded."""


@dataclass(frozen=True)
class Outcome:
    """What a switch did: the ids that are `on` in the server now, and those that were not or were before.

    `counts` are hits, fallbacks and errors of what was on until now and is off, as a recording's header keeps them.
    It was in force within `ms` of being asked, once every process had planned its part.
    """

    on: tuple[str, ...]
    switched_on: tuple[str, ...]
    switched_off: tuple[str, ...]
    counts: list[dict[str, Any]]
    ms: float


def switch(server: Server, on: Iterable[str] = (), off: Iterable[str] = (), directory: Path | None = None) -> Outcome:
    """Switch optimizations of a live server between two of its steps; returns once it is in force everywhere.

    All of it or nothing; ids that are already so are left alone. Raises SpantraceError, with nothing changed, where an
    id is unknown, cannot be switched live (its graphs would have to be captured anew), is refused by this vLLM, goes
    into nothing that the server runs, or a process does not answer.
    """
    place, request = directory or default_directory(), {"type": "switch", "on": list(on), "off": list(off)}
    switched: set[str] = set()
    counts: list[dict[str, Any]] = []
    ms = 0.0
    with ExitStack() as stack:
        engines = _plan_everywhere(stack, place, server, request, switched)
        began = time.perf_counter()
        for engine, connection, has_workers in engines:
            answer = _answer(engine, connection, {"type": "commit", "workers": has_workers}, SWITCH_TIMEOUT_S)
            counts += answer["ended"]
        ms = (time.perf_counter() - began) * 1e3
    asked_on, asked_off = ([name for name in request[way] if name in switched] for way in ("on", "off"))
    return Outcome(tuple(switched_on(server, place)), tuple(asked_on), tuple(asked_off), summed(counts), ms)


def check(server: Server, on: Iterable[str] = (), off: Iterable[str] = (), directory: Path | None = None) -> None:
    """SpantraceError where `switch` would refuse these; every process plans its part and drops it, nothing changes."""
    request = {"type": "switch", "on": list(on), "off": list(off)}
    with ExitStack() as stack:
        _plan_everywhere(stack, directory or default_directory(), server, request, set())


def on_nowhere(server: Server, names: Iterable[str], directory: Path | None = None) -> list[str]:
    """Those of the ids that would be on in no process of the server; those that it refuses otherwise are not."""
    found = []
    for name in names:
        try:
            check(server, [name], directory=directory)
        except OnNowhere:
            found.append(name)
        except SpantraceError:
            continue
    return found


def switched_on(server: Server, directory: Path | None = None) -> list[str]:
    """The ids that are on in a server, in one of its processes at least."""
    place = directory or default_directory()
    answers = [ask(place, member.pid, {"type": "optimizations"}) for member in _members(server)]
    return sorted({one["id"] for answer in answers for one in answer.get("on", ())})


def reset_prefix_cache(server: Server, directory: Path | None = None) -> str:
    """Empty the prefix cache through the engine; why that was refused, nothing where it was done."""
    place = directory or default_directory()
    for engine, _ in _families(server):
        answer = ask(place, engine.pid, {"type": "reset_prefix_cache"}, SWITCH_TIMEOUT_S)
        if answer.get("type") != "reset":
            raise SpantraceError(_refusal(engine, answer))
        if answer["refused"]:
            return str(answer["refused"])
    return ""


def refuse_undelayed(server: Server, directory: Path | None = None) -> None:
    """SpantraceError where a process of the server was not started to be delayed."""
    place = directory or default_directory()
    for member in _members(server):
        answer = ask(place, member.pid, {"type": "delays"})
        if answer.get("type") != "allowed":
            raise SpantraceError(_refusal(member, answer))


def _members(server: Server) -> list[Member]:
    """Every engine and worker; SpantraceError as from `_families`."""
    return [member for engine, workers in _families(server) for member in (engine, *workers)]


def _families(server: Server) -> Iterator[tuple[Member, list[Member]]]:
    """Each engine with its workers, all of which answer; SpantraceError where there is none or one does not."""
    engines = server.of_role("engine")
    if not engines:
        raise SpantraceError(
            f"process {server.root} has no engine process of its own (an in-process LLM, or still starting)"
        )
    for engine in engines:
        workers = [member for member in server.of_role("worker") if member.parent == engine.pid]
        if deaf := [member for member in (engine, *workers) if not member.reachable]:
            raise SpantraceError(deaf[0].why)
        yield engine, workers


def _plan_everywhere(
    stack: ExitStack, place: Path, server: Server, request: Frame, switched: set[str]
) -> list[tuple[Member, Connection, bool]]:
    """Let every process plan its part; each engine with its connection, and whether it has workers."""
    engines, here = [], set[str]()
    for engine, workers in list(_families(server)):
        asked = {**request, "token": uuid.uuid4().hex}
        for member in (*workers, engine):
            connection = connect(place, member.pid)
            stack.callback(connection.close)
            planned = _answer(member, connection, asked, PLAN_TIMEOUT_S)
            switched.update(planned["changes"])
            here.update(planned["here"])
        engines.append((engine, connection, bool(workers)))
    if nowhere := [name for name in request["on"] if name not in here]:
        raise OnNowhere(
            f"{nowhere[0]} would be on nowhere: this server has loaded none of the code that it goes into "
            "(another model runner, or layers that its model has not)"
        )
    return engines


def _answer(member: Member, connection: Connection, request: Frame, timeout: float) -> Frame:
    try:
        connection.send(request)
        answer = connection.receive(timeout)
    except (OSError, EOFError, ValueError) as error:
        raise SpantraceError(f"{member.role} process {member.pid} broke off: {error}") from error
    if answer is None:
        raise SpantraceError(f"{member.role} process {member.pid} did not answer within {timeout:g} s")
    if answer.get("type") not in ("planned", "switched"):
        raise SpantraceError(_refusal(member, answer))
    return answer


def _refusal(member: Member, answer: Frame) -> str:
    why = str(answer.get("why", ""))
    if not why or why.startswith("unknown request"):
        return f"{member.role} process {member.pid} runs an older spantrace; restart the server"
    return why
