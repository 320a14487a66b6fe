"""Which methods of speculation leave nothing to drop, and attributes that are held at another value for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

METHODS = ("dflash", "dspark")
"""Their drafters compute a position's K/V from the target's hidden state there, never from the token behind it."""
_ABSENT = object()


def why_not(method: str | None) -> str | None:
    """Why the last cached block of a hit must be dropped with this method of speculation; None where it need not."""
    if method is None:
        return "nothing is drafted, so nothing is dropped"
    return None if method in METHODS else f"with {method} the last block may have been computed from other tokens"


class Held:
    """Attributes that have another value until `put_back`, which gives the very objects back."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, str, object, object]] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Give `owner.name`, which must be there, another value."""
        self._held.append((owner, name, getattr(owner, name), value))
        setattr(owner, name, value)

    def put_back(self) -> None:
        """Undo all of it, the last first; what somebody else has set since is left alone."""
        while self._held:
            owner, name, before, value = self._held.pop()
            if getattr(owner, name, _ABSENT) is value:
                setattr(owner, name, before)


@contextmanager
def held(owner: Any, **values: object) -> Iterator[None]:
    """Those of these attributes that `owner` has, at these values for the length of a block."""
    changes = Held()
    try:
        for name, value in values.items():
            if hasattr(owner, name):
                changes.set(owner, name, value)
        yield
    finally:
        changes.put_back()
