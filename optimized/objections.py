"""Why something is left as it is: what may be held against it, in order."""

from __future__ import annotations

from collections.abc import Mapping


def first_objection(objections: Mapping[str, bool]) -> str | None:
    """The first reason that holds, None where none does."""
    return next((reason for reason, holds in objections.items() if holds), None)
