"""How optimizations are named in a text, and what is said of a text or a name that is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from spantrace.errors import SpantraceError


def names_in(text: str) -> list[str]:
    """The names in "a,b"; SpantraceError where one is missing, or is a word that stands alone."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        what = "an id is missing" if any(names) else "nothing is named"
        raise SpantraceError(f"{what} in {text!r}; give ids as a,b, or all or none")
    if alone := [name for name in names if name in ("all", "none")]:
        raise SpantraceError(f"{alone[0]} stands alone; leave it or the other ids out of {text!r}")
    return names


def unknown(name: str, known: Iterable[str]) -> SpantraceError:
    """That nothing is called so, and what has a similar name."""
    close = ", ".join(get_close_matches(name, list(known)))
    near = f" (close: {close})" if close else ""
    return SpantraceError(f"no optimization is called {name!r}{near}; spantrace optimizations lists them all")
