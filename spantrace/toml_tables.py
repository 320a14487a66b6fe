"""Tables of a TOML file, their keys and types checked: a mistake is one sentence that names it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from spantrace.errors import SpantraceError

_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """The tables of a TOML text, called `what` where it is none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpantraceError(f"{what} is no TOML: {error}") from error


def checked(table: object, known: Mapping[str, type], what: str) -> dict[str, Any]:
    """A copy of a table with only `known` keys, each of its type; SpantraceError for any other."""
    if not isinstance(table, Mapping):
        raise SpantraceError(f"{what} must be a table")
    for key, value in table.items():
        if key not in known:
            raise SpantraceError(f"{what} has no key {key!r}; choose from {', '.join(known)}")
        if not _is(value, known[key]):
            raise SpantraceError(f"{key} of {what} must be {_NAMES[known[key]]}, not {value!r}")
    return dict(table)


def _is(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
