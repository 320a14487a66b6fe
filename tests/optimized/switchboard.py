"""What switches replace, before and after; who else may have been there; and a switch of nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any

from every_one import ALL

from optimized.optimization import Counts
from optimized.reference_cycle.cycle import Cycle
from optimized.seams import Seam


def place_of(seam: Seam) -> tuple[Any, str]:
    """The class or the module that a seam is in, and the name that is replaced there."""
    holder, _, name = seam.method.rpartition(".")
    module = import_module(seam.module)
    return (getattr(module, holder) if holder else module), name


def everything() -> list[dict[str, Any]]:
    """What the classes and modules with seams hold now."""
    owners = dict.fromkeys(place_of(seam)[0] for item in ALL.values() for seam in item.seams_at())
    return [dict(vars(owner)) for owner in owners]


def same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    """Whether both hold the very same objects."""
    return all(
        a.keys() == b.keys() and all(a[name] is b[name] for name in a) for a, b in zip(first, second, strict=True)
    )


FOREIGN: dict[str, Callable[[Any, Any], Any]] = {
    "a stranger": lambda owner, original: lambda *_: None,
    "a wrapper": lambda owner, original: wraps(original)(lambda *args: original(*args)),
    "another method": lambda owner, original: Cycle.restart,
    "no function": lambda owner, original: partial(original),
}


class Wrapping:
    """Replaces `Sealed.open` and `Sealed.shut`."""

    def __init__(self) -> None:
        self.counts = Counts()

    def stand_ins(self) -> dict[str, Callable[[Any], Any]]:
        return {f"Sealed.{name}": lambda original: wraps(original)(lambda self: "else") for name in ("open", "shut")}

    def allocated(self) -> int:
        return 0

    def close(self) -> None:
        pass
