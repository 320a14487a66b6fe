"""A result as a document (heading, verdict, one table, facts), printed as terminal table, markdown, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from typing import Literal

from spantrace.legible import legible

SCHEMA_VERSION = 1
Cell = str | int | float | None
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Format(str, Enum):
    """How a document is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


def number(value: float) -> str:
    """Up to three significant digits and two decimals, three decimals below 0.01: 217, 21.7, 2.17, 0.22, 0.004."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.00995 or size < 0.0005 else f"{value:.3f}"


def probability(value: float) -> str:
    """A p-value with three decimals."""
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def many(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: 1 run, 2 runs, 1,000 runs; `plural` where that is no "s" more."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def percent(value: float) -> str:
    """A share as whole percent: 0.38 is 38%."""
    return f"{value:.0%}"


def signed_percent(value: float) -> str:
    """A relative change with its sign: -0.216 is -21.6%."""
    return f"{value:+.1%}"


@dataclass(frozen=True)
class Column:
    """A column: `key` of its cells, `title` under `group` (the unit belongs there).

    With `write` it holds numbers, aligned on the point; without, text. `bar` draws the cell (a share from 0 to 1) as a
    bar on terminals that are wide enough; `optional` columns go next where they are too narrow. `only` says
    which readers get the column, people or CSV; `style` is a terminal style, or gives one for a cell.
    """

    key: str
    title: str
    group: str = ""
    write: Callable[[float], str] | None = None
    bar: bool = False
    optional: bool = False
    only: Literal["text", "data", None] = None
    style: str | Callable[[Cell], str] = ""


@dataclass(frozen=True)
class Row:
    """Cells by column key; the first column is `label` in the terminal's tree, `name` (or `label`) in markdown.

    `only` keeps a row that sums up others from those who read CSV.
    """

    cells: Mapping[str, Cell]
    label: str
    style: str = ""
    name: str = ""
    only: Literal["text", None] = None


@dataclass(frozen=True)
class Table:
    """The first column names the rows; every other one holds numbers or short text. Without rows only CSV shows it."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Headline:
    """The answer in one word and one to four sentences."""

    word: str
    sentences: tuple[str, ...]
    style: str = "bold"


@dataclass(frozen=True)
class Fact:
    """A labelled line of short statements."""

    label: str
    parts: tuple[str, ...]
    style: str = ""


@dataclass(frozen=True)
class Section:
    """A second answer below the first: its own sentences and table, for people; CSV does without."""

    headline: Headline
    table: Table


@dataclass(frozen=True)
class Document:
    """What a command answers: `heading` lines of parts, and `data` for JSON, keys stable within a schema version."""

    command: str
    heading: tuple[tuple[str, ...], ...]
    headline: Headline | None
    table: Table
    facts: tuple[Fact, ...] = ()
    data: Mapping[str, object] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()


def to_json(document: Document) -> str:
    """One JSON object with `schema_version`, `command` and the document's data; NaN and infinity become null."""
    whole = {"schema_version": SCHEMA_VERSION, "command": document.command, **document.data}
    return json.dumps(plain(whole), indent=2) + "\n"


def plain(value: object) -> Json:
    """Dataclasses, mappings, enums and numpy scalars as what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value.value, int) else plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def to_csv(document: Document) -> str:
    """The table with raw values: one header line of column keys, empty cells empty."""
    out = io.StringIO()
    keys = [column.key for column in document.table.columns if not column.bar and column.only != "text"]
    writer = csv.DictWriter(out, keys, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in (row for row in document.table.rows if row.only != "text"):
        writer.writerow({key: f"{v:.9g}" if isinstance(v, float) else v for key, v in row.cells.items()})
    return out.getvalue()


def markdown(document: Document) -> str:
    """The verdict as a sentence, then a pipe table, each section the same way, then the facts as a list."""
    lines = [] if document.headline is None else _sentences(document.headline)
    for parts in document.heading:
        lines += [" · ".join(parts), ""]
    lines += _pipe_table(document.table)
    for section in document.sections:
        lines += ["", *_sentences(section.headline), *_pipe_table(section.table)]
    lines += [""] + [f"- {fact.label}: " + " · ".join(fact.parts) for fact in document.facts]
    return "\n".join(map(legible, lines)).rstrip() + "\n"


def _sentences(headline: Headline) -> list[str]:
    word = f"**{headline.word}.** " if headline.word else ""
    return [word + " ".join(headline.sentences), ""]


def _pipe_table(table: Table) -> list[str]:
    if not table.rows:
        return []
    columns = [column for column in table.columns if not column.bar and column.only != "data"]
    titles = [f"{column.group} {column.title}".strip() for column in columns]
    rows = [
        [row.name or row.label, *(written(column, row.cells.get(column.key)) for column in columns[1:])]
        for row in table.rows
    ]
    return [_pipes(titles), _pipes(["--:" if column.write else ":--" for column in columns]), *map(_pipes, rows)]


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def written(column: Column, value: Cell) -> str:
    """A cell as people read it: `-` where there is nothing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, str):
        return value
    return column.write(value) if column.write else f"{value:g}"
