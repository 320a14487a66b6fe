"""Replace attributes of live classes and modules all-or-nothing, and put the very objects back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]
_ABSENT = object()


@dataclass(frozen=True)
class Patch:
    """`owner.name` gets `replacement`; `original` is what the owner's own dictionary held, if anything."""

    owner: Any
    name: str
    original: object
    replacement: object

    def install(self) -> None:
        """Set the replacement; a class attribute takes effect at the next call."""
        setattr(self.owner, self.name, self.replacement)

    def revert(self) -> bool:
        """Put the original object back; False, and nothing done, where somebody patched over this patch."""
        if vars(self.owner).get(self.name, _ABSENT) is not self.replacement:
            return False
        if self.original is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)
        return True


def plan(owner: Any, name: str, wrap: Callable[[Function], Function]) -> Patch:
    """Prepare a patch of the function `owner.name`: `wrap` gets the plain function and returns its stand-in.

    Raises AttributeError where the owner has no such attribute and TypeError where it is not a function.
    """
    raw = vars(owner).get(name, _ABSENT)
    found = raw if raw is not _ABSENT else _inherited(owner, name)
    if isinstance(found, staticmethod | classmethod):
        replacement: object = type(found)(wrap(found.__func__))
    elif callable(found) and not isinstance(found, type):
        replacement = wrap(found)
    else:
        raise TypeError(f"{getattr(owner, '__name__', owner)}.{name} is not a function")
    return Patch(owner, name, raw, replacement)


def _inherited(owner: Any, name: str) -> object:
    for base in getattr(owner, "__mro__", ()):
        if name in vars(base):
            return vars(base)[name]
    raise AttributeError(f"{getattr(owner, '__name__', owner)} has no {name}")


class PatchSet:
    """Patches that are installed together and taken back in reverse order."""

    def __init__(self) -> None:
        self._planned: list[Patch] = []
        self._installed: list[Patch] = []
        self.conflicts: list[str] = []

    def add(self, patch: Patch) -> None:
        """Plan one more patch; a set that is in force takes it on at once."""
        if self._installed:
            patch.install()
            self._installed.append(patch)
        else:
            self._planned.append(patch)

    def install(self) -> None:
        """Install every planned patch, or none: a failure reverts those already in and is raised."""
        try:
            for patch in self._planned:
                patch.install()
                self._installed.append(patch)
        except Exception:
            self.revert()
            raise

    def revert(self) -> None:
        """Put every original back in reverse order; what somebody patched over is named in `conflicts`."""
        while self._installed:
            patch = self._installed.pop()
            if not patch.revert():
                self.conflicts.append(f"{getattr(patch.owner, '__name__', patch.owner)}.{patch.name}")
