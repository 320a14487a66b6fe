"""Whether an optimization may go into a vLLM: its version, its method of speculation, and the source of each seam."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from packaging.version import InvalidVersion, Version

from optimized.cases import Place
from optimized.optimization import Optimization
from optimized.seams import BUILT_IN

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class State(str, Enum):
    """What an optimization is in one place."""

    ON = "on"
    APPLIES = "applies"
    WAITING = "waiting"
    UPSTREAM = "already upstream"
    REFUSED = "refused"


@dataclass(frozen=True)
class Admission:
    """A state and, unless it simply applies, the reason."""

    state: State
    why: str = ""


def installed_sources() -> Path | None:
    """The folder that holds this environment's package vllm, found without importing it."""
    spec = find_spec("vllm")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]).parent if folders else None


def admit(item: Optimization, vllm: str, method: str | None = None, sources: Path | None = None) -> Admission:
    """Whether `item` may go into the vLLM of that version.

    `method` is the server's method of speculation, where it is known; `sources` the folder that holds the package,
    without which the version alone is judged.
    """
    if item.vllm_switch is None:
        return Admission(State.REFUSED, f"it fires in the {BUILT_IN} only")
    version = public(vllm)
    if version is not None and item.is_upstream(version):
        return Admission(State.UPSTREAM, f"vLLM {version} does this by itself")
    seams = item.seams_at(version) if version in item.versions() else ()
    if version is None or not seams:
        methods = ", ".join(dict.fromkeys(seam.method for seam in item.seams if seam.where != BUILT_IN))
        known, here = ", ".join(item.versions()), vllm or "of no version"
        unknown = f"it does not know {methods} of vLLM {here}, only of {known}"
        not_upstream = f"{item.restores} is known to be upstream in vLLM {known} only, and this is vLLM {here}"
        return Admission(State.REFUSED, not_upstream if item.restores else unknown)
    if method is not None and item.methods and method not in item.methods:
        return Admission(State.REFUSED, f"it is for {', '.join(item.methods)}, and the method here is {method}")
    if sources and (strange := strangers(item, version, sources)):
        return Admission(State.REFUSED, f"the source of {', '.join(strange)} is not that of vLLM {version}")
    return Admission(State.APPLIES)


def admit_here(item: Optimization, vllm: str) -> Admission:
    """Whether `item` may go into this environment's vLLM, which is of that version."""
    found = admit(item, vllm, sources=installed_sources())
    reasons = item.unmet() if found.state is State.APPLIES else []
    return Admission(State.REFUSED, "; ".join(reasons)) if reasons else found


def admit_built_in(item: Optimization, place: Place) -> Admission:
    """Whether `item` fires in the built-in cycle at that place, be it on this machine or on another one."""
    if not item.seams_at():
        return Admission(State.REFUSED, f"it does not fire in the {BUILT_IN}")
    why = unfit(item, place)
    return Admission(State.REFUSED, why) if why else Admission(State.APPLIES)


def unfit(item: Optimization, place: Place) -> str | None:
    """Why `item` has nothing to do in the cycle that runs there; None where it has, or where that is not known."""
    if place.drafter is not None and place.drafter not in item.drafters:
        here = "there is none" if place.drafter == "none" else f"the drafter here is {place.drafter}"
        return f"it is for the drafter {' or '.join(item.drafters)}, and {here}"
    return "the target here keeps no states" if item.needs_states and place.states is False else None


def strangers(item: Optimization, version: str, sources: Path) -> list[str]:
    """The functions below `sources` that are not those whose hashes `item` has for that version."""
    known = {target: hashes[version] for target, hashes in item.sources.items() if version in hashes}
    return [target.partition(":")[2] for target, wanted in known.items() if digest(sources, target) != wanted]


def public(version: str) -> str | None:
    """A version without its local part, as 0.32.0 of 0.32.0+cpu; None where it is none."""
    try:
        return Version(version).public
    except InvalidVersion:
        return None


def digest(sources: Path, target: str) -> str | None:
    """The sha256 of the text of "module:function", decorators included; None where there is no such function."""
    text = source(sources, target)
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def source(sources: Path, target: str) -> str | None:
    """The lines of "module:Class.method" or "module:function" in the module's file; None where it is not there."""
    module, _, path = target.partition(":")
    try:
        file = sources.joinpath(*module.split(".")).with_suffix(".py")
        text, tree = _parsed(file, file.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return None
    found: ast.Module | Definition = tree
    for name in path.split("."):
        inner = [node for node in found.body if isinstance(node, Definition) and node.name == name]
        if not inner:
            return None
        found = inner[-1]
    assert not isinstance(found, ast.Module)
    first = min(node.lineno for node in (found, *found.decorator_list))
    return "".join(text.splitlines(keepends=True)[first - 1 : found.end_lineno])


@lru_cache(maxsize=8)
def _parsed(path: Path, _changed: int) -> tuple[str, ast.Module]:
    text = path.read_text()
    return text, ast.parse(text)
