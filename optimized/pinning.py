"""A PINNED optimization judges itself before it runs: another torch may add up in another order."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from optimized.cases import Case, Place
from optimized.gate import unfit
from optimized.optimization import Agreement, Optimization
from spantrace.errors import SpantraceError


def self_test(optimization: Optimization, place: Place | None = None) -> None:
    """Raise SpantraceError where there is a `disagreement`."""
    if (why := disagreement(optimization, place)) is not None:
        raise SpantraceError(f"{optimization.id} cannot be applied: {why}")


def disagreement(optimization: Optimization, place: Place | None = None) -> str | None:
    """How a PINNED optimization differs from its reference at `place`; None where every bit is equal, and of others.

    The place is this machine's first choice unless told otherwise. Its cases run once in a process at each place; what
    they showed stands until the process ends.
    """
    if optimization.agreement is not Agreement.PINNED:
        return None
    from optimized.judging import choose_place

    key = optimization.id, optimization.cases, place or choose_place()
    if key not in _said:
        _said[key] = _disagreement(optimization, key[-1])
    return _said[key]


def hindrance(optimization: Optimization, place: Place | None) -> str | None:
    """Why it cannot be applied on this machine, or at one place of it, where a PINNED one judges itself."""
    if place is None:
        return "; ".join(optimization.unmet()) or None
    own = Place(place.device, place.dtype)
    return "; ".join(optimization.unmet(own.device)) or unfit(optimization, place) or disagreement(optimization, own)


class Judged:
    """Whether a PINNED optimization may run in a server, which is found out at the first call outside of a capture."""

    def __init__(self, optimization: Optimization) -> None:
        self._optimization, self._known = optimization, False
        self._why: str | None = None

    def why_not(self, captures: bool) -> str | None:
        """Why not, where a graph is being captured or not."""
        if not self._known:
            if captures:
                return UNJUDGED
            try:
                self_test(self._optimization)
            except SpantraceError as error:
                self._why = str(error)
            self._known = True
        return self._why


UNJUDGED = "it has not judged itself before the capture"
_said: dict[tuple[str, Callable[[], list[Case]], Place], str | None] = {}
"""What each self-test of this process found, None where every bit was equal."""


def _disagreement(optimization: Optimization, place: Place) -> str | None:
    from optimized.judging import judge

    judged = [judge(optimization, case, place) for case in optimization.cases()]
    failed = [one for one in judged if not one.passed]
    if not failed:
        return None
    unequal, elements = sum(one.unequal for one in failed), sum(one.elements for one in judged)
    differs = f"{unequal:,} of {elements:,} elements differ from its reference's" if unequal else failed[0].faults[0]
    return (
        f"with {_stack()} {differs} in {len(failed)} of {len(judged)} cases of its self-test on {place.device} in "
        f"{place.dtype}; it was proven on {optimization.proven}"
    )


def _stack() -> str:
    """The versions that the order of the arithmetic depends on."""
    import torch

    try:
        return f"torch {torch.__version__} and triton {version('triton')}"
    except PackageNotFoundError:
        return f"torch {torch.__version__} and no triton"
