"""Wrappers with the exact signature of what they wrap: two clock reads and one append around the call.

A generic `*args, **kwargs` wrapper costs two to five times as much, so each wrapper's source is generated from the
wrapped function's signature. A factory is compiled once per shape and closed over per recording, so
that a wrapper blocked while its recording stops can only write into that recording's ring.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

Function = Callable[..., Any]


@dataclass(frozen=True)
class Wiring:
    """What one wrapper calls; None leaves that part out of the generated code.

    `before(*arguments)` and `after(start_ns, result, *arguments)` read facts; `failed(error, alive)` is told when
    one of them raises and empties `alive`, which switches both off. `open()` and `close(row, start_ns, end_ns,
    opened)` time the span on the GPU and `push()`/`pop()` are NVTX; none of these may raise. `lane()` gives the
    calling thread's lane shifted left by `LANE_SHIFT`.
    """

    row: int | None
    append: Function
    number: Function
    clock: Function
    failed: Function
    alive: list[bool]
    before: Function | None = None
    after: Function | None = None
    open: Function | None = None
    close: Function | None = None
    push: Function | None = None
    pop: Function | None = None
    lane: Function | None = None


LANE_SHIFT = 16
_PARTS = tuple(field.name for field in fields(Wiring))


def wrap(function: Function, wiring: Wiring) -> Function:
    """A stand-in for `function` with its exact signature and metadata, wired as told."""
    parameters, call, defaults = _signature_source(function)
    source = _source(parameters, call, wiring)
    factory = _factory(source, tuple(defaults))
    wrapper: Function = factory(function, *(getattr(wiring, name) for name in _PARTS), *defaults.values())
    return functools.update_wrapper(wrapper, function)


@functools.lru_cache(maxsize=1024)
def _factory(source: str, defaults: tuple[str, ...]) -> Function:
    closed = ", ".join(("original_", *(f"{name}_" for name in _PARTS), *defaults))
    lines = [f"def factory({closed}):", *source.splitlines()]
    scope: dict[str, Any] = {}
    exec("\n    ".join([*lines, "return wrapper"]), scope)
    return scope["factory"]  # type: ignore[no-any-return]


def _signature_source(function: Function) -> tuple[str, str, dict[str, Any]]:
    """The parameters, the call's arguments, and the default objects by the name they are closed under."""
    parts: list[str] = []
    call: list[str] = []
    defaults: dict[str, Any] = {}
    seen_star = False
    parameters = list(inspect.signature(function).parameters.values())
    for index, parameter in enumerate(parameters):
        name, kind = parameter.name, parameter.kind
        if kind is parameter.VAR_POSITIONAL or kind is parameter.VAR_KEYWORD:
            stars = "*" if kind is parameter.VAR_POSITIONAL else "**"
            seen_star = True
            parts.append(stars + name)
            call.append(stars + name)
            continue
        if kind is parameter.KEYWORD_ONLY and not seen_star:
            parts.append("*")
            seen_star = True
        text = name
        if parameter.default is not parameter.empty:
            defaults[f"default_{index}__"] = parameter.default
            text = f"{name}=default_{index}__"
        parts.append(text)
        call.append(f"{name}={name}" if kind is parameter.KEYWORD_ONLY else name)
        following = parameters[index + 1].kind if index + 1 < len(parameters) else None
        if kind is parameter.POSITIONAL_ONLY and following is not parameter.POSITIONAL_ONLY:
            parts.append("/")
    return ", ".join(parts), ", ".join(call), defaults


def _source(parameters: str, call: str, wiring: Wiring) -> str:
    row = "row_" if wiring.lane is None else "row_ + lane_()"
    returns = wiring.after is None
    body = [f"def wrapper({parameters}):"]
    body += _guarded(f"before_({call})") if wiring.before else []
    body += ["    push_()"] if wiring.push else []
    body += ["    opened__ = open_()"] if wiring.open else []
    body += ["    start__ = clock_()", "    try:"]
    body += [f"        {'return' if returns else 'result__ ='} original_({call})"]
    body += ["    finally:"]
    closing = ["        end__ = clock_()"] if wiring.close or wiring.pop else []
    end = "end__" if closing else "clock_()"
    if wiring.row is not None:
        closing += [f"        append_((number_(), {row}, start__, {end}))"]
    closing += ["        close_(row_, start__, end__, opened__)"] if wiring.close else []
    closing += ["        pop_()"] if wiring.pop else []
    body += closing or ["        pass"]
    if not returns:
        body += _guarded(f"after_(start__, result__{', ' + call if call else ''})")
        body += ["    return result__"]
    return "\n".join(body)


def _guarded(call: str) -> list[str]:
    return [
        "    if alive_:",
        "        try:",
        f"            {call}",
        "        except Exception as error__:",
        "            failed_(error__, alive_)",
    ]
