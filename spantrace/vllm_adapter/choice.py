"""The optimizations that were chosen when this server started, in one of its processes.

The choice is an environment variable, which all processes inherit. Each judges all that is chosen by version and
sources, with the same result everywhere, and applies all of it or nothing: each one as soon as the modules of its
seams have been imported, which is before the engine serves. Nothing here raises into the server.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.packages import refuse_stranger
from spantrace.vllm_adapter.after_import import after_import

CHOICE = "SPANTRACE_OPTIMIZE"
"""The chosen ids, separated by commas."""
_TOLD = "SPANTRACE_OPTIMIZE_REFUSED"
"""Set once a refusal has been logged: the processes that are started later inherit it and stay silent."""
_log = logging.getLogger("spantrace")
_waiting: dict[str, set[str]] = {}
_refused: dict[str, str] = {}


def prepare(choice: str) -> None:
    """Apply what is chosen, now or as soon as this process has imported it; a refusal refuses all of it."""
    names = [name for part in choice.split(",") if (name := part.strip())]
    try:
        refuse_stranger("optimized")
        names = _admitted(choice)
        _await(names)
    except Exception as error:
        _refuse(names, error)


def running_vllm() -> str:
    """The version of the vLLM in this process as it says itself, empty where there is none."""
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))


def counts() -> list[dict[str, Any]]:
    """Hits, fallbacks and errors so far of all that are on in this process."""
    optimized = sys.modules.get("optimized")
    return optimized.counts() if optimized else []


def counts_since(before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What has been counted since `before`, an earlier answer of `counts`."""
    earlier = {one["id"]: one for one in before}
    return [_less(one, earlier.get(one["id"])) for one in counts()]


def refusals() -> dict[str, str]:
    """Why what was chosen is not on, by id."""
    return dict(_refused)


def describe() -> Frame:
    """What is on here, with its counts and the bytes it holds, what waits for which modules, and what is refused.

    Nothing is judged: parsing vLLM's sources would take the interpreter from the server's threads.
    """
    optimized, vllm = sys.modules.get("optimized"), sys.modules.get("vllm")
    package = getattr(vllm, "__file__", None)
    return {
        "vllm": running_vllm(),
        "sources": str(Path(package).parents[1]) if package else None,
        "on": [{**one, "allocated": optimized.allocated(one["id"])} for one in counts()] if optimized else [],
        "waiting": {name: sorted(modules) for name, modules in _waiting.items()},
        "refused": refusals(),
    }


def _admitted(choice: str) -> list[str]:
    """The ids of a choice, all of which apply; SpantraceError with every reason where one does not."""
    import optimized
    from optimized.gate import State, admit_here, public

    names = optimized.select(choice, public(running_vllm()))
    admissions = {name: admit_here(optimized.discover()[name], running_vllm()) for name in names}
    if reasons := [f"{name}: {one.why}" for name, one in admissions.items() if one.state is not State.APPLIES]:
        raise SpantraceError("; ".join(reasons))
    return names


def _await(names: list[str]) -> None:
    import optimized
    from optimized.gate import public

    version = public(running_vllm())
    for name in names:
        _waiting[name] = {seam.module for seam in optimized.discover()[name].seams_at(version)}
    for name, modules in [(name, sorted(waits)) for name, waits in _waiting.items()]:
        for module in modules:
            after_import(module, partial(_imported, name, module))


def _imported(name: str, module: str) -> None:
    """Apply an optimization once the last module that it waits for is there; take all back where that fails."""
    waits = _waiting.get(name, set())
    waits.discard(module)
    if waits or name not in _waiting:
        return
    import optimized
    from optimized.gate import public

    try:
        optimized.apply([name], public(running_vllm()))
        del _waiting[name]
    except Exception as error:
        names = [*optimized.applied(), *_waiting]
        _waiting.clear()
        try:
            optimized.revert()
        except SpantraceError as failure:
            _log.warning("spantrace: %s", failure)
        _refuse(names, error)


def _refuse(names: list[str], error: Exception) -> None:
    why = str(error) if isinstance(error, SpantraceError) else f"{type(error).__name__}: {error}"
    _refused.update(dict.fromkeys(names, f"nothing was applied, because {why}"))
    if _TOLD not in os.environ:
        os.environ[_TOLD] = "1"
        _log.warning("spantrace: none of %s is on: %s", ", ".join(names), why)


def _less(now: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    if before is None:
        return now
    reasons = {reason: count - before["reasons"].get(reason, 0) for reason, count in now["reasons"].items()}
    totals = {name: now[name] - before[name] for name in ("hits", "fallbacks", "errors")}
    return {"id": now["id"], **totals, "reasons": {reason: count for reason, count in reasons.items() if count}}
