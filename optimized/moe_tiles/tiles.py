"""The measured tiles by GPU, type and shape of the experts, and tokens; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from spantrace.errors import SpantraceError
from spantrace.toml_tables import checked, parse_toml

TABLES = Path(__file__).with_name("tiles.toml")
LEAST_BLOCK = 16
"""What a tensor core multiplies at least."""
UNMEASURED = "no tile was measured for as many tokens"


@dataclass(frozen=True)
class Tile:
    """How the kernel cuts both products of a layer: what vLLM calls a configuration."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    GROUP_SIZE_M: int
    num_warps: int
    num_stages: int

    def config(self) -> dict[str, int]:
        """A new one in vLLM's words."""
        return {**asdict(self), "SPLIT_K": 1}


@dataclass(frozen=True)
class Experts:
    """What a table is for: the GPU by its full name, the weights' type, and one layer's shape, without a gate."""

    device: str
    dtype: str
    experts: int
    intermediate: int
    hidden: int
    top_k: int


Tables = Mapping[Experts, Mapping[int, Tile]]
_KEYS = {"device": str, "dtype": str, "experts": int, "intermediate": int, "hidden": int, "top_k": int}
_ROW = {"tokens": list, **{field.name: int for field in fields(Tile)}}


def parse(text: str, what: str = "the tiles") -> dict[Experts, dict[int, Tile]]:
    """The tables of a TOML text; SpantraceError for anything that is wrong in it."""
    found: dict[Experts, dict[int, Tile]] = {}
    for table in checked(parse_toml(text, what), {"table": list}, what).get("table", []):
        one = _complete(table, {**_KEYS, "row": list}, f"a table of {what}")
        rows = one.pop("row")
        experts = Experts(**one)
        if experts in found:
            raise SpantraceError(f"{what} has two tables for {experts}")
        found[experts] = _rows(rows, f"a row of {what}")
    return found


@cache
def tables() -> Tables:
    """The tables of this package."""
    return parse(TABLES.read_text())


def written(known: Tables) -> str:
    """The same tables as text, a row for each tile; those without any are left out."""
    lines: list[str] = []
    for experts, rows in ((experts, rows) for experts, rows in known.items() if rows):
        lines += ["[[table]]", *(_line(name, value) for name, value in asdict(experts).items()), ""]
        for tile in dict.fromkeys(rows.values()):
            tokens = sorted(count for count, other in rows.items() if other == tile)
            values = {"tokens": tokens, **asdict(tile)}
            lines += ["[[table.row]]", *(_line(name, value) for name, value in values.items()), ""]
    return "\n".join(lines)


def find(asked: Experts, tokens: int, known: Tables) -> Tile | str:
    """The tile for so many tokens, or why there is none."""
    if (rows := known.get(asked)) is not None:
        return rows.get(tokens) or UNMEASURED
    alike = [one for one in known if _shape(one) == _shape(asked)]
    if not alike:
        return f"no tile is known for experts of the shape {_shape(asked)}"
    if not any(one.dtype == asked.dtype for one in alike):
        return f"no tile is known for experts of {asked.dtype}"
    return f"no tile is known for these experts on {asked.device}"


def _shape(one: Experts) -> tuple[int, int, int, int]:
    return one.experts, one.intermediate, one.hidden, one.top_k


def _complete(table: object, known: Mapping[str, type], what: str) -> dict[str, Any]:
    found = checked(table, known, what)
    if missing := [name for name in known if name not in found]:
        raise SpantraceError(f"{what} lacks {', '.join(missing)}")
    return found


def _rows(rows: list[object], what: str) -> dict[int, Tile]:
    found: dict[int, Tile] = {}
    for row in rows:
        values = _complete(row, _ROW, what)
        counts = values.pop("tokens")
        tile = Tile(**values)
        _check(tile, what)
        for tokens in counts:
            if type(tokens) is not int or tokens < 1:
                raise SpantraceError(f"tokens of {what} must be whole numbers from 1 on, not {tokens!r}")
            if tokens in found:
                raise SpantraceError(f"{what} names {tokens} tokens a second time")
            found[tokens] = tile
    return found


def _check(tile: Tile, what: str) -> None:
    for name, value in asdict(tile).items():
        least = LEAST_BLOCK if name.startswith("BLOCK") else 1
        if value < least or (name.startswith(("BLOCK", "num_warps")) and value & (value - 1)):
            raise SpantraceError(f"{name} of {what} cannot be {value}")


def _line(name: str, value: object) -> str:
    return f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
