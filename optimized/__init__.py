"""What can be switched on in a vLLM server or in the built-in cycle: one folder per optimization.

`discover` reads the declarations, `apply` switches on all of what is asked or nothing, `revert` gives the originals
back; for vLLM ask `optimized.gate.admit` first. A cycle that is running on a GPU must capture its graphs anew after
either: `Cycle.forget_graphs`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from optimized.cases import Place
from optimized.naming import names_in, unknown
from optimized.optimization import Optimization, Switch
from optimized.pinning import hindrance, self_test
from optimized.seams import BUILT_IN, Seam
from spantrace.errors import SpantraceError
from spantrace.patching import Patch, PatchSet, plan

_DECLARED = ("OPTIMIZATION", "RESTORED_STOCK")
"""What a folder may declare: what it switches on, and what takes that out of a vLLM that has it by itself."""


@cache
def discover() -> dict[str, Optimization]:
    """Every declared optimization by id, in order of the ids; imports declarations only."""
    found: dict[str, Optimization] = {}
    folders = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.") if module.ispkg]
    for declared in (getattr(folder, name, None) for folder in folders for name in _DECLARED):
        if isinstance(declared, Optimization):
            if declared.id in found:
                raise ValueError(f"two folders declare {declared.id}")
            found[declared.id] = declared
    if clash := {item.named_set for item in found.values()} & found.keys():
        raise ValueError(f"a set is called {', '.join(sorted(clash))}, as an optimization is")
    return dict(sorted(found.items()))


def select(text: str, vllm: str | None = None, place: Place | None = None) -> list[str]:
    """The ids that "a,b", "all" or "none" names, with named sets; raises SpantraceError for what is wrong in it.

    All are those with a seam in the built-in cycle, or in that vLLM, less those that rebuild stock or are `left_out`.
    """
    text = text.strip()
    if text in ("all", "none"):
        without = left_out(text, vllm, place)
        fitting = [name for name, item in discover().items() if item.seams_at(vllm) and not item.restores]
        return [name for name in fitting if name not in without and text == "all"]
    return _known(members(names_in(text)))


def left_out(text: str, vllm: str | None = None, place: Place | None = None) -> dict[str, str]:
    """By id, what "all", and no other text, leaves out as it cannot be done here, or at that place, and why."""
    fitting = {name: item for name, item in discover().items() if item.seams_at(vllm) and text.strip() == "all"}
    return {name: why for name, item in fitting.items() if (why := hindrance(item, place))}


def members(names: Iterable[str]) -> list[str]:
    """The same names, with the ids of a set in place of its name."""
    return [one for name in names for one in sets().get(name, [name])]


def sets() -> dict[str, list[str]]:
    """The named sets, in order of their names, and the ids in each."""
    found: dict[str, list[str]] = {}
    for name, item in discover().items():
        if item.named_set:
            found.setdefault(item.named_set, []).append(name)
    return dict(sorted(found.items()))


def with_stock(on: Iterable[str], restored: Iterable[str]) -> list[str]:
    """These ids, and those of what takes the `restored` fixes out of a vLLM that has them by itself.

    Raises SpantraceError for an unknown one, one that cannot be restored, and one that is in both.
    """
    restorable = {item.restores: name for name, item in discover().items() if item.restores}
    chosen, fixes = _known(on), _known(restored)
    for name in fixes:
        if name in chosen:
            raise SpantraceError(f"{name} cannot be switched on and restored to stock at once")
        if name not in restorable:
            raise SpantraceError(f"{name} cannot be restored to stock; what can be: {', '.join(restorable)}")
    return [*chosen, *(restorable[name] for name in fixes)]


@dataclass(frozen=True)
class _Applied:
    switch: Switch
    seams: tuple[Seam, ...]
    patches: tuple[Patch, ...]
    installed: PatchSet


_applied: dict[str, _Applied] = {}


def applied() -> tuple[str, ...]:
    """The ids that are on, in the order in which they were applied."""
    return tuple(_applied)


class Prepared:
    """What is to be switched on: checked, planned and tested, with nothing replaced yet."""

    def __init__(self, planned: dict[str, _Applied]) -> None:
        self._planned = planned

    @property
    def ids(self) -> tuple[str, ...]:
        """What `install` will put on."""
        return tuple(self._planned)

    def install(self) -> list[str]:
        """Put all of it into force; returns the ids. SpantraceError, with nothing changed, where a seam resists."""
        done: list[str] = []
        try:
            for name, item in self._planned.items():
                item.installed.install()
                done.append(name)
        except Exception as error:
            for name in reversed(done):
                self._planned[name].installed.revert()
            raise SpantraceError(f"nothing was applied, because a seam could not be replaced: {error}") from error
        _applied.update(self._planned)
        return done


def prepare(ids: Iterable[str], vllm: str | None = None, place: Place | None = None, judge: bool = True) -> Prepared:
    """Get ready to switch on those of these that are not on yet: in the built-in cycle, or in the vLLM of that version.

    Its modules are imported where they are not yet. Raises SpantraceError, with nothing changed, where an id is
    unknown, a requirement does not hold, a seam is missing or in somebody else's hands, or a PINNED one is not equal to
    its reference at `place`, where this machine would run it unless told otherwise; without `judge` its switch asks.
    """
    wanted = [name for name in _known(ids) if name not in _applied]
    for name in wanted:
        if reasons := discover()[name].unmet(place.device if place else None):
            raise SpantraceError(f"{name} cannot be applied: {'; '.join(reasons)}")
    taken = {seam.owner: name for name, item in _applied.items() for seam in item.seams}
    planned: dict[str, _Applied] = {}
    for name in wanted:
        for seam in discover()[name].seams_at(vllm):
            if (other := taken.setdefault(seam.owner, name)) != name:
                raise SpantraceError(f"{name} and {other} both replace {seam.method}; choose one of them")
        planned[name] = _plan(discover()[name], vllm)
    for name in planned if judge else ():
        self_test(discover()[name], place)
    return Prepared(planned)


def apply(ids: Iterable[str], vllm: str | None = None, place: Place | None = None, judge: bool = True) -> list[str]:
    """Switch these on, all of them or none, as `prepare` and `install` do; returns those that were not on before."""
    return prepare(ids, vllm, place, judge).install()


def revert(ids: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Switch these off, the last applied first, or all that are on; returns the counts of those that were on.

    Raises SpantraceError, with nothing changed, where somebody has patched over one of their seams since.
    """
    asked = set(_applied if ids is None else _known(ids))
    leaving = [name for name in reversed(_applied) if name in asked]
    for name in leaving:
        for patch in _applied[name].patches:
            if vars(patch.owner).get(patch.name) is not patch.replacement:
                place = f"{patch.owner.__name__}.{patch.name}"
                raise SpantraceError(
                    f"{name} cannot be taken back: {place} was patched by somebody else since; undo that first"
                )
    last: list[dict[str, Any]] = []
    for name in leaving:
        item = _applied.pop(name)
        item.installed.revert()
        item.switch.close()
        last.append(item.switch.counts.as_dict(name))
    return last


def counts() -> list[dict[str, Any]]:
    """Hits, fallbacks and errors of all that are on, as a recording's header keeps them."""
    return [item.switch.counts.as_dict(name) for name, item in _applied.items()]


def warnings() -> list[str]:
    """A sentence for each one that is on and has not fired."""
    found = (item.switch.counts.warning(name) for name, item in _applied.items())
    return [sentence for sentence in found if sentence is not None]


def allocated(name: str) -> int:
    """Bytes that an optimization holds now; none while it is off."""
    return _applied[name].switch.allocated() if name in _applied else 0


def _known(ids: Iterable[str]) -> list[str]:
    unique = list(dict.fromkeys(ids))
    if wrong := [name for name in unique if name not in discover()]:
        raise unknown(wrong[0], [*discover(), *sets()])
    return unique


def _plan(optimization: Optimization, vllm: str | None) -> _Applied:
    """Resolve every seam and prepare its patch; nothing is replaced yet."""
    seams = optimization.seams_at(vllm)
    make = optimization.switch if vllm is None else optimization.vllm_switch
    if not seams or make is None:
        raise SpantraceError(f"{optimization.id} has no seam in the {BUILT_IN if vllm is None else f'vLLM {vllm}'}")
    owners = [_resolve(optimization.id, seam) for seam in seams]
    switch = make()
    stand_ins = switch.stand_ins()
    if not {seam.method for seam in seams} <= set(stand_ins) <= {seam.method for seam in optimization.seams}:
        raise SpantraceError(f"{optimization.id} replaces other methods than it declares; report this as a defect")
    patches = [plan(owner, name, stand_ins[seam.method]) for seam, (owner, name) in zip(seams, owners, strict=True)]
    installed = PatchSet()
    for patch in patches:
        installed.add(patch)
    return _Applied(switch, seams, tuple(patches), installed)


def _resolve(name: str, seam: Seam) -> tuple[type | ModuleType, str]:
    """The class or module of a seam, and the name of what is there as its own module defined it."""
    path = seam.method
    parent, _, attribute = path.rpartition(".")
    try:
        module = import_module(seam.module)
        owner = getattr(module, parent) if parent else module
        base = next(base for base in getattr(owner, "__mro__", (owner,)) if attribute in vars(base))
    except (ImportError, AttributeError, StopIteration) as error:
        raise SpantraceError(f"{name} cannot be applied: there is no {path} in {seam.module}") from error
    home = f"{base.__module__}:{base.__qualname__}.{attribute}" if parent else seam.source
    if not _as_defined(vars(base)[attribute], home):
        raise SpantraceError(f"{name} cannot be applied: {path} was patched by somebody else; undo that first")
    return owner, attribute


def _as_defined(function: Any, home: str) -> bool:
    """Whether it is the very function that the text of "module:Class.method" or "module:function" made."""
    module, _, path = home.partition(":")
    code, source = getattr(function, "__code__", None), getattr(sys.modules.get(module), "__file__", None)
    wrapped = hasattr(function, "__wrapped__") or getattr(function, "__qualname__", "") != path
    return code is not None and not wrapped and code.co_filename == source
