"""A document on a terminal or in a pipe: columns aligned on the point, dropped rather than wrapped."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spantrace.legible import legible
from spantrace.tables import Cell, Column, Document, Format, Headline, Table, markdown, to_csv, to_json, written

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPED_WIDTH = 100
BAR_CELLS = 12
GAP = "  "
_GLUE = "\u00a0"
_UNIT = re.compile(r"(?<=[0-9.]) (?=ms|us|ns|\.\.|[0-9(])|(?<=of) (?=[0-9])")
"""Blanks at which a line must not break: between a number and its unit or bound."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class _Block:
    """One column ready to print: its title and one string per row, all of one width."""

    column: Column
    title: str
    cells: list[str]

    @property
    def width(self) -> int:
        return len(self.title)


def emit(document: Document, form: Format) -> None:
    """Print to stdout; only a terminal gets colour and bars, a pipe gets every line at its full length."""
    if form is Format.TABLE:
        show(document)
        return
    renderers = {Format.MARKDOWN: markdown, Format.JSON: to_json, Format.CSV: to_csv}
    sys.stdout.write(renderers[form](document))
    sys.stdout.flush()


def show(document: Document, console: Console | None = None) -> None:
    """Print `document`; a pipe gets no colour, no bars, and every column whatever its width."""
    from rich.console import Console

    console = console or Console(highlight=False, soft_wrap=True)
    live = console.is_terminal and not console.is_dumb_terminal
    width = console.width if console.is_terminal else int(os.environ.get("COLUMNS") or PIPED_WIDTH)
    bars = live and (console.encoding or "").startswith("utf")
    with console.capture() as printed:
        for line in lines(document, width, bars=bars, cut=console.is_terminal):
            console.print(line, no_wrap=True, overflow="ignore", crop=False)
    console.file.write(printed.get())
    console.file.flush()


def lines(document: Document, width: int, *, bars: bool, cut: bool) -> list[Text]:
    """The document as styled lines of at most `width` characters; without `cut` the table may be wider."""
    from rich.text import Text

    out = [Text(line, "bold") for parts in document.heading for line in flow(parts, width)]
    out += [Text()] if out else []
    if document.headline is not None:
        out += [*_headline(document.headline, width), *([Text()] if document.table.rows else [])]
    out += _table(document.table, width, bars, cut)
    for section in document.sections:
        out += [Text(), *_headline(section.headline, width), Text(), *_table(section.table, width, bars, cut)]
    out += [Text()] if document.facts else []
    margin = max((len(fact.label) for fact in document.facts), default=0) + 2
    for fact in document.facts:
        for index, line in enumerate(flow(fact.parts, width - margin)):
            label = fact.label.ljust(margin) if index == 0 else " " * margin
            out.append(Text().append(label, "bold").append(line, fact.style))
    for text in out:
        text.plain = legible(text.plain)
    return out


def flow(parts: Sequence[str], width: int, separator: str = " | ") -> list[str]:
    """Join parts into lines, breaking between parts and only inside one that alone is too long."""
    out: list[str] = []
    for part in parts:
        if out and len(out[-1]) + len(separator) + len(part) <= width:
            out[-1] += separator + part
        else:
            out += textwrap.wrap(_UNIT.sub(_GLUE, part), max(width, 20), break_long_words=False) or [""]
    return [line.replace(_GLUE, " ") for line in out]


def align(cells: Sequence[str]) -> list[str]:
    """Pad the cells of one column to one width with their decimal points under each other."""
    tails = [len(cell) - cell.index(".") if "." in cell else 0 for cell in cells]
    longest = max(tails, default=0)
    padded = [
        cell if cell[:1].isalpha() or not cell[-1:].isdigit() else cell + " " * (longest - tail)
        for cell, tail in zip(cells, tails, strict=True)
    ]
    width = max((len(cell) for cell in padded), default=0)
    return [cell.rjust(width) for cell in padded]


def bar(share: Cell) -> str:
    """A share from 0 to 1 as up to 12 block characters, to an eighth of one."""
    eighths = round(min(max(float(share), 0.0), 1.0) * BAR_CELLS * 8) if isinstance(share, float) else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip().ljust(BAR_CELLS)


def _headline(headline: Headline, width: int) -> list[Text]:
    from rich.text import Text

    margin = len(headline.word) + len(GAP) if headline.word else 0
    wrapped = [line for sentence in headline.sentences for line in flow([sentence], width - margin)]
    first = Text().append(headline.word.ljust(margin), headline.style).append(wrapped[0])
    return [first, *(Text(" " * margin + line) for line in wrapped[1:])]


def _blocks(table: Table) -> list[_Block]:
    found = []
    for index, column in enumerate([column for column in table.columns if column.only != "data"]):
        values = [row.cells.get(column.key) for row in table.rows]
        if index == 0:
            cells = [row.label for row in table.rows]
        else:
            texts = [bar(value) if column.bar else written(column, value) for value in values]
            cells = align(texts) if column.write else texts
        width = max(len(column.title), *(len(cell) for cell in cells), 0) if cells else len(column.title)
        left = index == 0 or column.write is None
        padded = [cell.ljust(width) if left else cell.rjust(width) for cell in cells]
        found.append(_Block(column, column.title.ljust(width) if left else column.title.rjust(width), padded))
    return found


def _fitting(blocks: list[_Block], width: int, bars: bool, cut: bool) -> list[_Block]:
    blocks = blocks if bars else [block for block in blocks if not block.column.bar]
    if not cut:
        return blocks
    for dropped in ("bar", "optional"):
        if sum(block.width + len(GAP) for block in blocks) - len(GAP) > width:
            blocks = [block for block in blocks if not getattr(block.column, dropped)]
    return blocks


def _groups(blocks: list[_Block]) -> str:
    """The line above the titles: every group's name centred over its columns."""
    line, index = "", 0
    while index < len(blocks):
        group, start = blocks[index].column.group, index
        while index < len(blocks) and blocks[index].column.group == group:
            index += 1
        span = sum(block.width for block in blocks[start:index]) + len(GAP) * (index - start - 1)
        line += (group.rjust(blocks[start].width) if index == start + 1 else group.center(span)) + GAP
    return line.rstrip()


def _table(table: Table, width: int, bars: bool, cut: bool) -> list[Text]:
    from rich.text import Text

    if not table.rows:
        return []
    blocks = _fitting(_blocks(table), width, bars, cut)
    out = [Text(_groups(blocks), "dim")] if any(block.column.group for block in blocks) else []
    out.append(Text(GAP.join(block.title for block in blocks).rstrip(), "dim"))
    for index, row in enumerate(table.rows):
        text = Text(style=row.style)
        for block in blocks:
            style = block.column.style
            style = style if isinstance(style, str) else style(row.cells.get(block.column.key))
            text.append(block.cells[index], style).append(GAP)
        text.rstrip()
        out += _folded(text, len(text.plain.rstrip()) - len(blocks[-1].cells[index].strip()), width) if cut else [text]
    return out


def _folded(text: Text, margin: int, width: int) -> list[Text]:
    """Fold the last cell, which begins at `margin`, under itself where the line is too long."""
    from rich.text import Text

    if len(text.plain) <= width or width - margin < 20:
        return [text]
    folded = textwrap.wrap(text.plain[margin:], width - margin)
    return [text[:margin] + folded[0], *(Text(" " * margin + line, text.style) for line in folded[1:])]
