"""Replace attributes of live classes and modules, or functions' code, all-or-nothing, and put the very objects back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Protocol

Function = Callable[..., Any]
_ABSENT = object()
_DECORATORS = frozenset({"contextlib", "torch.utils._contextlib"})
"""Modules whose decorators run the function that they wrap at every call, whatever it becomes."""


class Change(Protocol):
    """Something that is put into force and taken back."""

    @property
    def label(self) -> str:
        """What is changed, for messages."""

    def free(self) -> bool:
        """Whether what it changes is as it was when this was planned."""

    def install(self) -> None:
        """Put it into force."""

    def revert(self) -> bool:
        """Take it back; False, and nothing done, where somebody changed the same on top."""


@dataclass(frozen=True)
class Patch:
    """`owner.name` gets `replacement`; `original` is what the owner's own dictionary held, if anything."""

    owner: Any
    name: str
    original: object
    replacement: object

    @property
    def label(self) -> str:
        """The owner's and the attribute's name."""
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"

    def free(self) -> bool:
        """Whether the original object is in its place."""
        return vars(self.owner).get(self.name, _ABSENT) is self.original

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


@dataclass(frozen=True)
class EntryPatch:
    """`entries[key]` gets `replacement` in the place of `original`."""

    entries: dict[Any, Any]
    key: Any
    original: object
    replacement: object

    @property
    def label(self) -> str:
        """The key."""
        return str(self.key)

    def free(self) -> bool:
        """Whether the original object is in its place."""
        return self.entries.get(self.key, _ABSENT) is self.original

    def install(self) -> None:
        """Set the replacement."""
        self.entries[self.key] = self.replacement

    def revert(self) -> bool:
        """Put the original object back; False, and nothing done, where another one is there by now."""
        if self.entries.get(self.key, _ABSENT) is not self.replacement:
            return False
        self.entries[self.key] = self.original
        return True


@dataclass(frozen=True)
class CodePatch:
    """`function` runs `replacement` in the place of `original`, its own code, from its next call on.

    No attribute is set, so the class keeps its version and the interpreter its specialised code: setting one makes
    CPython run every attribute access on that class's objects unspecialised for 53 to 88 executions.
    """

    function: FunctionType
    original: CodeType
    replacement: CodeType

    @property
    def label(self) -> str:
        """The function's name."""
        return self.function.__qualname__

    def free(self) -> bool:
        """Whether the function has its own code."""
        return self.function.__code__ is self.original

    def install(self) -> None:
        """Give the function the other code."""
        self.function.__code__ = self.replacement

    def revert(self) -> bool:
        """Give the function its own code again; False, and nothing done, where somebody gave it another since."""
        if self.function.__code__ is not self.replacement:
            return False
        self.function.__code__ = self.original
        return True


def own_function(owner: Any, name: str) -> FunctionType | None:
    """The function that a class's body defines as `name`, static or not, under torch's context decorators if any.

    None where the attribute is inherited, shared, or anything else than that: then only the attribute can be set.
    """
    found = vars(owner).get(name) if isinstance(owner, type) else None
    found = found.__func__ if isinstance(found, staticmethod) else found
    while isinstance(found, FunctionType) and found.__globals__.get("__name__") in _DECORATORS:
        found = getattr(found, "__wrapped__", None)
    if not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        return None
    return found if found.__qualname__ == f"{owner.__qualname__}.{name}" else None


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
    """Changes that are installed together and taken back in reverse order, as often as one likes."""

    def __init__(self) -> None:
        self._planned: list[Change] = []
        self._installed: list[Change] = []
        self._in_force = False
        self.conflicts: list[str] = []

    def add(self, change: Change) -> None:
        """Plan one more change; a set that is in force takes it on at once."""
        if self._in_force:
            change.install()
            self._installed.append(change)
        self._planned.append(change)

    def install(self) -> None:
        """Install every planned change, or none: a failure reverts those already in and is raised."""
        self._in_force = True
        try:
            for change in self._planned:
                change.install()
                self._installed.append(change)
        except Exception:
            self.revert()
            raise

    def restore(self) -> None:
        """Install again, without what somebody changed meanwhile: that is left, named in `conflicts` and given up."""
        changed = [change.label for change in self._planned if not change.free()]
        if changed:
            self.conflicts += [label for label in changed if label not in self.conflicts]
            self._planned = [change for change in self._planned if change.free()]
        self.install()

    def revert(self) -> None:
        """Put every original back in reverse order; what somebody changed on top is named in `conflicts`."""
        self._in_force = False
        while self._installed:
            change = self._installed.pop()
            if not change.revert():
                self.conflicts.append(change.label)
