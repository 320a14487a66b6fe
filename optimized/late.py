"""What a declaration names and does not import."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def late(place: str) -> Callable[..., Any]:
    """The function or class at "module:name", whose module is imported at the first call."""
    module, _, name = place.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(import_module(module), name)(*arguments)

    return call
