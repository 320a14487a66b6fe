"""Code that times a call, with the exact signature of the function it stands before: two clock reads and one row.

A generic `*args, **kwargs` wrapper costs two to five times as much, so each wrapper's source is generated from the
wrapped function's signature. It is compiled once per shape; what one recording's wrapper calls is put among the
code's constants, which lie together in memory where closure cells do not, and a wrapper that is blocked while its
recording stops can only write into that recording's ring.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import CodeType, FunctionType
from typing import Any

Function = Callable[..., Any]
LANE_SHIFT = 16


class Flag(list[bool]):
    """Raised while it holds anything; as cheap to test as a list, and hashable, as constants of code must be."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@dataclass(frozen=True)
class Wiring:
    """What one wrapper calls; None leaves that part out of the generated code.

    `before(*arguments)` and `after(start_ns, result, *arguments)` read facts; `failed(error, alive)` is told when
    one of them raises and lowers `alive`, which switches both off. `open()` and `close(row, start_ns, end_ns,
    opened)` time the span on the GPU while `timing` is raised, and `push()`/`pop()` are NVTX; none of these may
    raise. While `due` is raised `hold()` is called in the span, before the function. `lane()` gives the calling
    thread's lane shifted left by `LANE_SHIFT`. While `when` is lowered the wrapper only calls the function.
    """

    row: int | None
    put: Function
    clock: Function
    failed: Function
    alive: Flag
    before: Function | None = None
    after: Function | None = None
    timing: Flag | None = None
    open: Function | None = None
    close: Function | None = None
    push: Function | None = None
    pop: Function | None = None
    lane: Function | None = None
    due: Flag | None = None
    hold: Function | None = None
    when: Flag | None = None


_PARTS = tuple(field.name for field in fields(Wiring))


def wrap(function: Function, wiring: Wiring) -> Function:
    """A stand-in for `function` with its exact signature, defaults and metadata, wired as told."""
    parameters = list(inspect.signature(function).parameters.values())
    wrapper = FunctionType(_code(function, parameters, wiring, 0), {}, getattr(function, "__name__", "wrapper"))
    given = {one.name: one.default for one in parameters if one.default is not one.empty}
    by_name = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    wrapper.__defaults__ = tuple(default for name, default in given.items() if name not in by_name)
    wrapper.__kwdefaults__ = {name: default for name, default in given.items() if name in by_name}
    return functools.update_wrapper(wrapper, function)


def rewrite(function: FunctionType, wiring: Wiring) -> CodeType:
    """Code to run in the place of `function`'s own: it calls a copy of the function, wired as told.

    It takes the same parameters, whose defaults stay the function's, and as many free variables, as Python demands.
    """
    code = function.__code__
    copy = FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    plain = [one.replace(default=one.empty) for one in parameters]
    own = _code(copy, plain, wiring, len(code.co_freevars))
    return own.replace(
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )


def _code(original: Function, parameters: list[inspect.Parameter], wiring: Wiring, free: int) -> CodeType:
    """The wrapper's code with everything it calls among its constants."""
    constants = {f"{name}_": getattr(wiring, name) for name in _PARTS}
    constants |= {"original_": original, "exception_": Exception}
    code = _compiled(_source(*_signature(parameters), wiring, free))
    filled = (constants.get(one, one) if isinstance(one, str) else one for one in code.co_consts)
    return code.replace(co_consts=tuple(filled))


@functools.lru_cache(maxsize=1024)
def _compiled(source: str) -> CodeType:
    scope: dict[str, Any] = {}
    exec(source, scope)
    wrapper: FunctionType = scope["outer"]()
    return wrapper.__code__


def _signature(parameters: list[inspect.Parameter]) -> tuple[str, str]:
    """The parameters as a definition lists them, without defaults, and as a call passes them on."""
    parts: list[str] = []
    call: list[str] = []
    seen_star = False
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
        parts.append(name)
        call.append(f"{name}={name}" if kind is parameter.KEYWORD_ONLY else name)
        following = parameters[index + 1].kind if index + 1 < len(parameters) else None
        if kind is parameter.POSITIONAL_ONLY and following is not parameter.POSITIONAL_ONLY:
            parts.append("/")
    return ", ".join(parts), ", ".join(call)


def _source(parameters: str, call: str, wiring: Wiring, free: int) -> str:
    """A function `outer` that returns the wrapper; "name_" stands for the constant that takes its place."""
    names = [name for name in ("original", *_PARTS, "exception") if _used(name, wiring)]
    row = "row__" if wiring.lane is None else "row__ + lane__()"
    returns = wiring.after is None
    body = [f'{name}__ = "{name}_"' for name in names]
    body += ["if not when__:", f"    return original__({call})"] if wiring.when is not None else []
    body += _guarded(f"before__({call})") if wiring.before else []
    body += ["push__()"] if wiring.push else []
    body += ["opened__ = open__() if timing__ else -1"] if wiring.open else []
    body += ["start__ = clock__()"] if _timed(wiring) else []
    body += ["try:"]
    body += ["    if due__:", "        hold__()"] if wiring.hold else []
    body += [f"    {'return' if returns else 'result__ ='} original__({call})"]
    body += ["finally:"]
    closing = ["    end__ = clock__()"] if wiring.close or wiring.pop else []
    if wiring.row is not None:
        closing += [f"    put__(({row}, start__, {'end__' if closing else 'clock__()'}))"]
    closing += ["    if timing__:", "        close__(row__, start__, end__, opened__)"] if wiring.close else []
    closing += ["    pop__()"] if wiring.pop else []
    body += closing or ["    pass"]
    if not returns:
        body += _guarded(f"after__(start__, result__{', ' + call if call else ''})")
        body += ["return result__"]
    unused = [f"free_{index}__" for index in range(free)]
    kept = ["if 0:", f"    {', '.join(unused)}"] if free else []
    lines = [f"    def wrapper({parameters}):", *(f"        {line}" for line in kept + body), "    return wrapper"]
    return "\n".join([f"def outer({', '.join(f'{name}=None' for name in unused)}):", *lines])


def _used(name: str, wiring: Wiring) -> bool:
    """Whether the wrapper needs a local of this name."""
    probed = wiring.before is not None or wiring.after is not None
    if name in ("alive", "failed", "exception"):
        return probed
    if name == "put":
        return wiring.row is not None
    if name == "clock":
        return _timed(wiring)
    return name == "original" or getattr(wiring, name) is not None


def _timed(wiring: Wiring) -> bool:
    """Whether anybody asks when the call began."""
    return any(part is not None for part in (wiring.row, wiring.after, wiring.close, wiring.pop))


def _guarded(call: str) -> list[str]:
    return [
        "if alive__:",
        "    try:",
        f"        {call}",
        "    except exception__ as error__:",
        "        failed__(error__, alive__)",
    ]
