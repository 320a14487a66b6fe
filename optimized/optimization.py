"""What an optimization declares, and what it counts while it is on; no torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from optimized.launching import INTERPRET, why_no_kernels, why_no_kernels_here
from optimized.reference_cycle.settings import DRAFTERS
from optimized.seams import BUILT_IN, Seam, is_specifier
from spantrace.patching import Function
from spantrace.spans import SPAN_NAMES
from spantrace.switched import from_counts

if TYPE_CHECKING:
    from optimized.cases import Case, Contest
    from optimized.reference_cycle.settings import Settings

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
STOCK_OF = "stock-"
"""What the id of one that rebuilds stock begins with, before the id of the fix that it takes out."""
MOST_REASONS, LONGEST_REASON = 16, 80
"""Errors that are told apart while a switch is on, and the characters of each one's first line that are kept."""
_WORDS = ("all", "none")
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Agreement(Enum):
    """How far results agree with the reference."""

    BITWISE = "bitwise"
    """Equal in every bit, on any machine."""
    PINNED = "pinned"
    """Equal in every bit while the order of the arithmetic is the one that was proven."""
    TOLERANT = "tolerant"
    """Equal within rounding, with equal greedy tokens."""


@dataclass(frozen=True)
class Requirement:
    """`sentence` says what must hold; `unmet()` why it does not here, `unmet_on` on a device; None where it does."""

    sentence: str
    unmet: Callable[[], str | None]
    unmet_on: Callable[[str], str | None] | None = None

    def why_not(self, device: str | None) -> str | None:
        """Why it does not hold on a device, or on what this machine would choose."""
        return self.unmet() if device is None or self.unmet_on is None else self.unmet_on(device)


def needs_package(name: str) -> Requirement:
    """That a package can be imported; it is looked for, not imported."""
    return Requirement(f"{name} is installed", lambda: None if find_spec(name) else f"{name} is not installed")


def needs_kernels() -> Requirement:
    """That Triton's kernels run here: compiled on a GPU, or interpreted on a CPU where that is asked for."""
    return Requirement(f"triton is installed, and there is a GPU or {INTERPRET}=1", why_no_kernels_here, why_no_kernels)


@dataclass
class Counts:
    """How often calls took the optimized way, fell back, or failed and fell back, the latter two by reason.

    In the built-in cycle a hit is a cycle, whatever the number of calls in it: those of two switches can be compared.
    `sorts` are hits that a report tells apart from the others, by what is special about them.
    """

    hits: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    sorts: Counter[str] = field(default_factory=Counter)

    def failed(self, error: Exception) -> None:
        """Count an error by its type and the beginning of its text; the sorts that are told apart are limited."""
        text = next(iter(str(error).splitlines()), "")[:LONGEST_REASON].rstrip()
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
        self.errors[reason if reason in self.errors or len(self.errors) < MOST_REASONS else "other errors"] += 1

    def as_dict(self, name: str) -> dict[str, Any]:
        """Plain values for a recording's header."""
        reasons = {**self.fallbacks, **self.errors}
        totals = {"hits": self.hits, "fallbacks": self.fallbacks.total(), "errors": self.errors.total()}
        return {"id": name, **totals, "reasons": reasons, **({"sorts": dict(self.sorts)} if self.sorts else {})}

    def warning(self, name: str) -> str | None:
        """What to tell about a switch that never fired; None where it did."""
        return from_counts(self.as_dict(name)).warning


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

    Where `fast` or `why_not` fails, `recover` is called with the error and the arguments and `original` answers: fast
    must leave nothing that the original does not overwrite.
    """

    @wraps(original)
    def call(*args: Any) -> Any:
        try:
            if (reason := why_not(*args)) is None:
                result = fast(*args)
        except Exception as error:
            counts.failed(error)
            if recover:
                recover(error, *args)
            return original(*args)
        if reason is not None:
            if count_hits:
                counts.fallbacks[reason] += 1
            return original(*args)
        counts.hits += count_hits
        return result

    return call


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """A declaration: what may be switched on, where, under which conditions, and what it costs.

    `seed` is where the idea was published and `figure` what was claimed or measured there. `guard` says which calls
    are taken; all others run the original. `memory` gives the bytes it adds at given settings, `switch` what is put
    into the seams of the built-in cycle, `vllm_switch` into those of vLLM, and `cases` what it is judged on. A
    `live_switchable` one can be put on and taken off between any two steps, another one at the start only. `contest`
    is what it is timed on at given settings; a PINNED one says on which torch it was `proven`. In the built-in cycle
    it has hits with each of its `drafters` alone, and, where it `needs_states`, with a target that keeps some.
    `captured` specifies the versions of vLLM whose graphs keep what they were captured with: there it is not live.
    For vLLM, `sources` holds the sha256 of the source text of every function that is replaced or relied on, by
    "module:function" and version: other code is not touched. `upstream` specifies the versions that have it already,
    `methods` the methods of speculation that it is for, where not for all. One without a seam in the built-in cycle
    names its `evidence`: the test of a server, "path::test", or the recording in which it has hits.

    One that `restores` another takes it out of the versions that have it by themselves, so that its saving can be
    measured there; it is declared in the same folder. All of a `named_set` can be asked for together by its name.
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
    cases: Callable[[], list[Case]]
    switch: Callable[[], Switch] | None = None
    vllm_switch: Callable[[], Switch] | None = None
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    upstream: str = ""
    captured: str = ""
    methods: tuple[str, ...] = ()
    restores: str = ""
    evidence: str = ""
    contest: Callable[[Settings], Contest] | None = None
    proven: str = ""
    drafters: tuple[str, ...] = DRAFTERS
    named_set: str = ""
    needs_states: bool = False

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
        if not self.drafters or not set(self.drafters) <= set(DRAFTERS):
            raise ValueError(f"{self.id}: drafters are one or more of {', '.join(DRAFTERS)}")
        if len({(seam.owner, seam.where) for seam in self.seams}) < len(self.seams):
            raise ValueError(f"{self.id}: a seam is declared twice")
        if (self.agreement is Agreement.PINNED) != bool(self.proven):
            raise ValueError(f"{self.id}: a PINNED optimization, and no other, says on which torch it was proven")
        if (self.id != STOCK_OF + self.restores) if self.restores else self.id.startswith(STOCK_OF):
            raise ValueError(f"{self.id}: what restores a fix, and nothing else, is called {STOCK_OF} and the fix's id")
        if self.named_set and (not _ID.fullmatch(self.named_set) or self.named_set in (self.id, *_WORDS)):
            raise ValueError(f"{self.id}: {self.named_set!r} cannot name a set of optimizations")
        self._check_places()

    def _check_places(self) -> None:
        in_vllm = {seam.source for seam in self.seams if seam.where != BUILT_IN}
        if (self.switch is None) == bool(self.seams_at()) or (self.vllm_switch is None) == bool(in_vllm):
            raise ValueError(f"{self.id}: a place with seams needs a switch, one without needs none")
        if unknown := in_vllm - set(self.sources):
            raise ValueError(f"{self.id}: no hash of the source of {', '.join(sorted(unknown))}")
        if wrong := [text for text in (self.upstream, self.captured) if text and not is_specifier(text)]:
            raise ValueError(f"{self.id}: {wrong[0]!r} specifies no versions")
        if not (self.evidence or self.seams_at()):
            raise ValueError(f"{self.id}: it never fires in the {BUILT_IN}, so it must name its evidence")

    def seams_at(self, vllm: str | None = None) -> tuple[Seam, ...]:
        """The seams in the built-in cycle, or in the vLLM of that version."""
        return tuple(seam for seam in self.seams if seam.is_in(vllm))

    def versions(self) -> list[str]:
        """The vLLM versions whose sources it knows, oldest first."""
        known = [set(hashes) for hashes in self.sources.values()]
        return sorted((v for v in set().union(*known) if self.seams_at(v)), key=Version)

    def is_upstream(self, vllm: str) -> bool:
        """Whether the vLLM of that version does the same by itself."""
        return bool(self.upstream) and vllm in SpecifierSet(self.upstream)

    def is_live(self, vllm: str | None = None) -> bool:
        """Whether it is switched between any two steps of the built-in cycle, or of the vLLM of that version."""
        return self.live_switchable and not (vllm and self.captured and vllm in SpecifierSet(self.captured))

    def unmet(self, device: str | None = None) -> list[str]:
        """Why it cannot be applied here, or on one device of this machine: the requirements that do not hold."""
        return [reason for requirement in self.requirements if (reason := requirement.why_not(device)) is not None]
