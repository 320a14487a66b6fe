"""A document as one HTML page that needs nothing else: no network, no script, no font of its own; light and dark.

The page is built as a tree, so that whatever text is in it, such as a recording's, is escaped where it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.resources import files
from itertools import groupby
from xml.etree import ElementTree

from spantrace.legible import legible
from spantrace.tables import Cell, Column, Document, Fact, Headline, Row, Section, Table, written

Element = ElementTree.Element
Swatch = Callable[[Row], Element | None]
"""What stands before a row's name, if anything."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may load: nothing; its own styles are in it."""


def element(tag: str, *content: Element | str | None, **attributes: str) -> Element:
    """An element with these attributes (`class_` is class) and this content, texts and elements in turn."""
    named = {name.rstrip("_").replace("_", "-"): legible(value) for name, value in attributes.items()}
    made = ElementTree.Element(tag, named)
    for part in content:
        if isinstance(part, str):
            _append(made, legible(part))
        elif part is not None:
            made.append(part)
    return made


def page(document: Document, title: str, figure: Element | None = None, swatch: Swatch = lambda row: None) -> str:
    """The whole page: heading, verdict, the figure if there is one, the table and the facts."""
    body = element(
        "main",
        element("header", *(element("p", " · ".join(parts)) for parts in document.heading)),
        None if document.headline is None else _headline(document.headline),
        figure,
        element("section", element("h2", "What each span costs"), _table(document.table, swatch)),
        *(_section(section, swatch) for section in document.sections),
        element("section", element("h2", "What is known of it"), _facts(document.facts)),
    )
    whole = element("html", _head(title), element("body", body), lang="en")
    return "<!DOCTYPE html>\n" + ElementTree.tostring(whole, encoding="unicode", method="html") + "\n"


def _append(made: Element, text: str) -> None:
    if len(made):
        made[-1].tail = (made[-1].tail or "") + text
    else:
        made.text = (made.text or "") + text


def _head(title: str) -> Element:
    style = ElementTree.Element("style")
    style.text = files("spantrace").joinpath("page.css").read_text(encoding="utf-8")
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        style,
    )


def _headline(headline: Headline) -> Element:
    first, *others = headline.sentences
    return element(
        "section",
        element("h1", headline.word) if headline.word else None,
        element("p", first, class_="first"),
        *(element("p", sentence) for sentence in others),
        class_=f"verdict {(headline.style.split() or [''])[-1]}",
    )


def _section(section: Section, swatch: Swatch) -> Element:
    told = [element("p", sentence) for sentence in section.headline.sentences]
    return element("section", element("h2", section.headline.word), *told, _table(section.table, swatch))


def _table(table: Table, swatch: Swatch) -> Element:
    columns = [column for column in table.columns if column.only != "data"]
    rows = [element("tr", *_cells(row, columns, swatch), class_=row.style or "row") for row in table.rows]
    return element("table", element("thead", _groups(columns), _titles(columns)), element("tbody", *rows))


def _groups(columns: list[Column]) -> Element:
    sizes = [(group, len(list(among))) for group, among in groupby(columns, key=lambda column: column.group)]
    return element("tr", *(element("th", group, colspan=str(size)) for group, size in sizes), class_="groups")


def _titles(columns: list[Column]) -> Element:
    return element("tr", *(element("th", column.title, class_=_kind(column)) for column in columns))


def _cells(row: Row, columns: list[Column], swatch: Swatch) -> Iterable[Element]:
    label = row.label.lstrip()
    depth = (len(row.label) - len(label)) // 2
    yield element("th", swatch(row), label, scope="row", style=f"--depth: {depth}")
    for column in columns[1:]:
        value = row.cells.get(column.key)
        yield element("td", _bar(value) if column.bar else written(column, value), class_=_kind(column))


def _kind(column: Column) -> str:
    return "share" if column.bar else "number" if column.write else "text"


def _bar(share: Cell) -> Element | None:
    if not isinstance(share, float):
        return None
    return element("i", style=f"width: {min(max(share, 0.0), 1.0):.1%}")


def _facts(facts: Iterable[Fact]) -> Element:
    made = element("dl")
    for fact in facts:
        made.append(element("dt", fact.label, class_=fact.style or "plain"))
        made.append(element("dd", *(element("span", part) for part in fact.parts), class_=fact.style or "plain"))
    return made
