"""What an optimization declares, what it counts while it is on, and the cases it is judged on; no torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from spantrace.patching import Function
from spantrace.spans import SPAN_NAMES

if TYPE_CHECKING:
    from torch import Tensor

    from optimized.reference_cycle.settings import Settings

BUILT_IN = "built-in cycle"
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OWNER = re.compile(r"[a-z_][\w.]*:[A-Za-z_]\w*\.[A-Za-z_]\w*")


class Agreement(Enum):
    """How far results agree with the reference."""

    BITWISE = "bitwise"
    """Equal in every bit, on any machine."""
    PINNED = "pinned"
    """Equal in every bit while the order of the arithmetic is the one that was proven."""
    TOLERANT = "tolerant"
    """Equal within rounding, with equal greedy tokens."""


@dataclass(frozen=True)
class Seam:
    """A method that is replaced, "module:Class.method", and where: `BUILT_IN`, or "vllm" and a version specifier."""

    owner: str
    where: str = BUILT_IN

    def __post_init__(self) -> None:
        if not _OWNER.fullmatch(self.owner):
            raise ValueError(f"{self.owner!r} does not name a method as module:Class.method")
        if self.where != BUILT_IN:
            name, _, versions = self.where.partition(" ")
            try:
                known = name == "vllm" and bool(str(SpecifierSet(versions)))
            except InvalidSpecifier:
                known = False
            if not known:
                raise ValueError(f"{self.where!r} is neither {BUILT_IN!r} nor a vllm with a version specifier")

    @property
    def method(self) -> str:
        """The class and the method, without the module."""
        return self.owner.partition(":")[2]


@dataclass(frozen=True)
class Requirement:
    """`sentence` says what must hold; `unmet()` says why it does not here, None where it does."""

    sentence: str
    unmet: Callable[[], str | None]


def needs_package(name: str) -> Requirement:
    """That a package can be imported; it is looked for, not imported."""
    return Requirement(f"{name} is installed", lambda: None if find_spec(name) else f"{name} is not installed")


@dataclass
class Counts:
    """How often calls took the optimized way, fell back, or failed and fell back, the latter two by reason."""

    hits: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def as_dict(self, name: str) -> dict[str, Any]:
        """Plain values for a recording's header."""
        reasons = {**self.fallbacks, **self.errors}
        totals = {"hits": self.hits, "fallbacks": self.fallbacks.total(), "errors": self.errors.total()}
        return {"id": name, **totals, "reasons": reasons}

    def warning(self, name: str) -> str | None:
        """What to tell about a switch that never fired; None where it did."""
        if self.hits:
            return None
        turned_away = self.fallbacks + self.errors
        if not turned_away:
            return f"{name} was on and no call reached it"
        reason, _ = turned_away.most_common(1)[0]
        return f"{name} was on and never fired: {turned_away.total()} calls fell back, most because {reason}"


class Switch(Protocol):
    """One optimization while it is applied: `stand_ins` gives, by Class.method, what wraps the original function."""

    counts: Counts

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """A wrapper for the seam of each built-in method."""

    def allocated(self) -> int:
        """Bytes that this switch holds now."""

    def close(self) -> None:
        """Let go of all that it holds, after its seams were given back."""


def guarded(
    original: Function,
    fast: Function,
    why_not: Callable[..., str | None],
    counts: Counts,
    count_hits: bool = True,
    recover: Callable[..., None] | None = None,
) -> Function:
    """`fast` where `why_not` has no reason against these arguments, else `original`; counted either way.

    Where `fast` fails, `recover` is called with the error and the arguments and `original` answers: fast must leave
    nothing that the original does not overwrite.
    """

    @wraps(original)
    def call(*args: Any) -> Any:
        reason = why_not(*args)
        if reason is not None:
            if count_hits:
                counts.fallbacks[reason] += 1
            return original(*args)
        try:
            result = fast(*args)
        except Exception as error:
            counts.errors[f"{type(error).__name__}: {error}"] += 1
            if recover:
                recover(error, *args)
            return original(*args)
        counts.hits += count_hits
        return result

    return call


@dataclass(frozen=True)
class Case:
    """A situation that an optimization is judged on: `make` gives the same fresh problem at each call."""

    name: str
    make: Callable[[], Problem]
    steps: int = 1


class Problem(Protocol):
    """State and inputs, worked on by the reference or by the implementation; both return what they computed."""

    def inputs(self) -> dict[str, Tensor]:
        """What neither may change."""

    def poison(self) -> None:
        """Fill every output buffer with what no computation leaves behind."""

    def reference(self) -> dict[str, Tensor]:
        """One step in plain PyTorch."""

    def fast(self) -> dict[str, Tensor]:
        """One step as the optimization does it."""

    def next(self) -> None:
        """New inputs for the next step; state is carried over."""


@dataclass(frozen=True)
class Optimization:
    """A declaration: what may be switched on, where, under which conditions, and what it costs.

    `seed` is where the idea was published and `figure` what was claimed or measured there. `guard` says which calls
    are taken; all others run the original. `memory` gives the bytes it adds at given settings, `switch` what is put
    into the seams, and `cases` what it is judged on. A `live_switchable` one can be put on and taken off between any
    two steps.
    """

    id: str
    summary: str
    seed: str
    figure: str
    targets: tuple[str, ...]
    seams: tuple[Seam, ...]
    requirements: tuple[Requirement, ...]
    guard: str
    agreement: Agreement
    memory: Callable[[Settings], int]
    live_switchable: bool
    switch: Callable[[], Switch]
    cases: Callable[[], list[Case]]

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"{self.id!r} is not an id of lower-case words joined by hyphens")
        for name in ("summary", "seed", "figure", "guard"):
            text = getattr(self, name)
            if not text.strip() or "\n" in text:
                raise ValueError(f"{self.id}: {name} must be one line of text")
        if unknown := [span for span in self.targets if span not in SPAN_NAMES]:
            raise ValueError(f"{self.id}: {', '.join(unknown)} is no span")
        if not self.targets or not self.seams:
            raise ValueError(f"{self.id}: at least one target span and one seam are needed")
        if len({(seam.owner, seam.where) for seam in self.seams}) < len(self.seams):
            raise ValueError(f"{self.id}: a seam is declared twice")

    def seams_at(self, where: str = BUILT_IN) -> tuple[Seam, ...]:
        """The seams in one place."""
        return tuple(seam for seam in self.seams if seam.where == where)

    def unmet(self) -> list[str]:
        """Why it cannot be applied here: the requirements that do not hold."""
        return [reason for requirement in self.requirements if (reason := requirement.unmet()) is not None]
