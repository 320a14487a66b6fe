"""The optimizations of one process of a server: those chosen when it started, and those switched while it serves.

The choice is an environment variable, which all processes inherit. Each judges all that is chosen by version and
sources, with the same result everywhere, and applies all of it or nothing: each one as soon as the modules of its
seams have been imported, which is before the engine serves. Nothing here raises into the server.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.packages import refuse_stranger
from spantrace.switched import since, summed
from spantrace.vllm_adapter.after_import import after_import

if TYPE_CHECKING:
    from optimized import Prepared

CHOICE = "SPANTRACE_OPTIMIZE"
"""The chosen ids, separated by commas."""
_TOLD = "SPANTRACE_OPTIMIZE_REFUSED"
"""Set once a refusal has been logged: the processes that are started later inherit it and stay silent."""
_log = logging.getLogger("spantrace")
_waiting: dict[str, set[str]] = {}
_refused: dict[str, str] = {}
_admitted_here: set[str] = set()
"""What has been judged to apply, so that vLLM's sources are parsed once."""
_ended: list[dict[str, Any]] = []
"""What was counted by what has been switched off."""


def prepare(choice: str) -> None:
    """Apply what is chosen, now or as soon as this process has imported it; a refusal refuses all of it."""
    names = [name for part in choice.split(",") if (name := part.strip())]
    try:
        refuse_stranger("optimized")
        _await(names := _admitted(choice))
    except Exception as error:
        refuse(names, error)


def running_vllm() -> str:
    """The version of the vLLM in this process as it says itself, empty where there is none."""
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))


def counts() -> list[dict[str, Any]]:
    """Hits, fallbacks and errors so far of all that are on in this process."""
    optimized = sys.modules.get("optimized")
    return optimized.counts() if optimized else []


class Tally:
    """What is counted in this process from now on, by what is on at any time of it."""

    def __init__(self) -> None:
        self._on = {one["id"] for one in counts()}
        self._before = {one["id"]: one for one in _totals()}

    def counts(self) -> list[dict[str, Any]]:
        """Hits, fallbacks and errors so far, as a recording's header keeps them."""
        on = self._on | {one["id"] for one in counts()}
        found = [since(self._before.get(one["id"]), one) for one in _totals()]
        return [one for one in found if one["id"] in on or one["hits"] or one["reasons"]]


def _totals() -> list[dict[str, Any]]:
    """All that was ever counted in this process, also by what has been switched off since."""
    return summed([*_ended, *counts()])


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
        "own": str(Path(__file__).parents[2]),
        "on": [{**one, "allocated": optimized.allocated(one["id"])} for one in counts()] if optimized else [],
        "waiting": {name: sorted(modules) for name, modules in _waiting.items()},
        "refused": refusals(),
    }


@dataclass
class Plan:
    """A switch in this process, ready to be put into force: `waits` are put on once their modules are imported."""

    off: list[str]
    on: Prepared
    waits: list[str]
    _done: list[str] = field(default_factory=list)
    _taken: list[str] = field(default_factory=list)

    def changes(self) -> list[str]:
        """The ids that it puts off or on here."""
        return [*self.off, *self.on.ids, *self.waits]

    def here(self) -> list[str]:
        """The ids that are on in this process once it is in force, those aside that wait for a module."""
        import optimized

        return [*(name for name in optimized.applied() if name not in self.off), *self.on.ids]

    def put_into_force(self) -> list[dict[str, Any]]:
        """Do it; the counts of those that are off now. Where something fails nothing is changed."""
        import optimized

        ended = optimized.revert(self.off)
        self._taken = [one["id"] for one in ended]
        try:
            self._done = self.on.install()
        except SpantraceError:
            self.take_back()
            raise
        for name in self.off:
            _waiting.pop(name, None)
        _await(self.waits)
        for name in self._done:
            _refused.pop(name, None)
        _ended[:] = summed([*_ended, *ended])
        return ended

    def take_back(self) -> None:
        """Undo it, as far as it has been put into force."""
        import optimized
        from optimized.gate import public

        optimized.revert(self._done)
        optimized.apply(reversed(self._taken), public(running_vllm()))
        for name in self.waits:
            _waiting.pop(name, None)


def plan(on: list[str], off: list[str]) -> Plan:
    """Prepare to put these on and those off; SpantraceError, in one sentence, where one cannot be switched live."""
    refuse_stranger("optimized")
    import optimized
    from optimized.gate import public

    if both := set(on) & set(off):
        raise SpantraceError(f"{', '.join(sorted(both))} cannot be on and off at once")
    for name in [*on, *off]:
        _check_live(*optimized.select(name))
    version, now = public(running_vllm()), {*optimized.applied(), *_waiting}
    fresh = [name for name in on if name not in now]
    if fresh:
        _admitted(",".join(fresh))
    modules = {name: {seam.module for seam in optimized.discover()[name].seams_at(version)} for name in fresh}
    here = [name for name in fresh if all(module in sys.modules for module in modules[name])]
    return Plan(
        [name for name in off if name in now],
        optimized.prepare(here, version),
        [name for name in fresh if name not in here],
    )


def _check_live(name: str) -> None:
    """SpantraceError where that optimization is not one that can be switched while a server runs."""
    import optimized
    from optimized.seams import BUILT_IN

    item = optimized.discover()[name]
    if item.vllm_switch is None:
        raise SpantraceError(f"{name} cannot be switched in a server: it fires in the {BUILT_IN} only")
    if not item.is_live(running_vllm() or None):
        raise SpantraceError(
            f"{name} cannot be switched live: what it replaces is captured in CUDA graphs, which would have to be "
            f"captured anew; restart the server with or without spantrace serve --optimize {name}"
        )


def _admitted(choice: str) -> list[str]:
    """The ids of a choice, all of which apply; SpantraceError with every reason where one does not."""
    import optimized
    from optimized.gate import State, admit_here, public

    names = optimized.select(choice, public(running_vllm()))
    unknown = [name for name in names if name not in _admitted_here]
    admissions = {name: admit_here(optimized.discover()[name], running_vllm()) for name in unknown}
    if reasons := [f"{name}: {one.why}" for name, one in admissions.items() if one.state is not State.APPLIES]:
        raise SpantraceError("; ".join(reasons))
    _admitted_here.update(names)
    return names


def _await(names: list[str]) -> None:
    import optimized
    from optimized.gate import public

    version = public(running_vllm())
    for name in names:
        _waiting[name] = {seam.module for seam in optimized.discover()[name].seams_at(version)}
    for name, modules in [(name, sorted(_waiting[name])) for name in names]:
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
        optimized.apply([name], public(running_vllm()), judge=False)  # the process may not have chosen its GPU yet
        del _waiting[name]
    except Exception as error:
        names = [*optimized.applied(), *_waiting]
        _waiting.clear()
        try:
            optimized.revert()
        except SpantraceError as failure:
            _log.warning("spantrace: %s", failure)
        refuse(names, error)


def refuse(names: list[str], error: Exception) -> None:
    """Note, and log once for all processes, that these are not on here and why."""
    why = str(error) if isinstance(error, SpantraceError) else f"{type(error).__name__}: {error}"
    _refused.update(dict.fromkeys(names, f"nothing was applied, because {why}"))
    if _TOLD not in os.environ:
        os.environ[_TOLD] = "1"
        _log.warning("spantrace: none of %s is on: %s", ", ".join(names), why)
