"""Documents as terminal tables, markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spantrace.spans import Track
from spantrace.tables import (
    Column,
    Document,
    Fact,
    Headline,
    Row,
    Table,
    markdown,
    number,
    percent,
    plain,
    signed_percent,
    to_csv,
    to_json,
)
from spantrace.terminal import BAR_CELLS, align, bar, flow, show

DOCUMENT = Document(
    "report",
    (("model", "batch 1"),),
    Headline("HOST-BOUND", ("The host works.",), "bold red"),
    Table(
        (
            Column("span", "span"),
            Column("median_ms", "median", "host ms", number),
            Column("share", "share", "host ms", percent),
            Column("share", "", bar=True, style="cyan"),
            Column("raw", "raw", only="data"),
        ),
        (
            Row({"span": "cycle", "median_ms": 7.1731, "share": 1.0, "raw": 0.1}, "cycle"),
            Row({"span": "target.metadata", "median_ms": None, "share": 0.5}, "  metadata", "dim", "target.metadata"),
        ),
    ),
    (Fact("trust", ("lost rows 0", "hook errors 0")),),
    {"spans": [{"median": 7.1731, "p90": math.nan}]},
)


def printed(document: Document, *, width: int = 80, terminal: bool = False, **environment: str) -> str:
    out = io.StringIO()
    show(document, Console(file=out, width=width, force_terminal=terminal, highlight=False, _environ=environment))
    return out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.4, "1,234"), (217.3, "217"), (21.73, "21.7"), (2.173, "2.17"), (0.2173, "0.22"), (0.0042, "0.004"),
     (0.0, "0.00"), (9.996, "10.0"), (99.96, "100"), (-0.5, "-0.50")],
)  # fmt: skip
def test_numbers_have_two_or_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_shares_and_changes() -> None:
    assert percent(0.384) == "38%"
    assert signed_percent(-0.2164) == "-21.6%"
    assert signed_percent(0.05) == "+5.0%"


def test_numbers_align_on_the_point() -> None:
    assert align(["7.17", "217", "0.004", "-"]) == ["  7.17 ", "217    ", "  0.004", "      -"]
    assert align(["+5.5% .. +7.25", "absent in r1"]) == ["+5.5% .. +7.25", "  absent in r1"]


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=12))
def test_aligned_points_share_a_column(values: list[float]) -> None:
    cells = align([number(value) for value in values])
    assert len({len(cell) for cell in cells}) == 1
    assert len({cell.index(".") for cell in cells if "." in cell}) <= 1


def test_a_pipe_gets_plain_text() -> None:
    assert printed(DOCUMENT) == (
        "model | batch 1\n"
        "\n"
        "HOST-BOUND  The host works.\n"
        "\n"
        "               host ms\n"
        "span        median  share\n"
        "cycle         7.17   100%\n"
        "  metadata       -    50%\n"
        "\n"
        "trust  lost rows 0 | hook errors 0\n"
    )


def test_a_terminal_gets_colour_and_bars_where_they_fit() -> None:
    wide = printed(DOCUMENT, width=80, terminal=True, TERM="xterm-256color")
    assert "\x1b[1;31mHOST-BOUND" in wide
    assert "█" * BAR_CELLS in wide
    narrow = printed(DOCUMENT, width=30, terminal=True, TERM="xterm-256color")
    assert "█" not in narrow
    assert "7.17   100%" in narrow


def test_no_color_and_dumb_terminals_are_honoured() -> None:
    assert "\x1b[1;31m" not in printed(DOCUMENT, terminal=True, TERM="xterm-256color", NO_COLOR="1")
    dumb = printed(DOCUMENT, terminal=True, TERM="dumb")
    assert "█" not in dumb
    assert "\x1b" not in dumb


def test_optional_columns_go_after_the_bars() -> None:
    columns = (Column("a", "name"), Column("b", "bbbb", write=number, optional=True), Column("c", "cccc", write=number))
    document = Document("x", (), None, Table(columns, (Row({"b": 1.0, "c": 2.0}, "long name"),)))
    assert "bbbb" in printed(document, width=22, terminal=True)
    assert "bbbb" not in printed(document, width=20, terminal=True)
    assert "bbbb" in printed(document, width=20)


def test_a_last_column_of_text_is_folded_under_itself() -> None:
    columns = (Column("check", "check"), Column("detail", "detail"))
    text = "one two three four five six seven"
    document = Document("doctor", (), None, Table(columns, (Row({"detail": text}, "gpu"),)))
    assert [line.rstrip() for line in printed(document, width=30, terminal=True, NO_COLOR="1").splitlines()[1:]] == [
        "gpu    one two three four five",
        "       six seven",
    ]


def test_parts_flow_and_numbers_keep_their_unit() -> None:
    assert flow(["aaa", "bbb", "ccc"], 9) == ["aaa | bbb", "ccc"]
    assert flow(["it takes exactly 5.27 ms (73%)"], 23) == ["it takes exactly", "5.27 ms (73%)"]


@given(st.floats(-1, 2))
def test_bars_have_one_width(share: float) -> None:
    assert len(bar(share)) == BAR_CELLS


def test_half_a_bar() -> None:
    assert bar(0.5) == "██████      "
    assert bar(None).strip() == ""


def test_markdown_puts_the_verdict_first() -> None:
    assert markdown(DOCUMENT) == (
        "**HOST-BOUND.** The host works.\n"
        "\n"
        "model · batch 1\n"
        "\n"
        "| span | host ms median | host ms share |\n"
        "| :-- | --: | --: |\n"
        "| cycle | 7.17 | 100% |\n"
        "| target.metadata | - | 50% |\n"
        "\n"
        "- trust: lost rows 0 · hook errors 0\n"
    )


def test_markdown_escapes_pipes() -> None:
    document = Document("x", (), None, Table((Column("a", "a|b"),), (Row({}, "c|d"),)))
    assert markdown(document).splitlines()[0] == "| a\\|b |"


def test_json_is_versioned_and_has_no_nan() -> None:
    assert json.loads(to_json(DOCUMENT)) == {
        "schema_version": 1,
        "command": "report",
        "spans": [{"median": 7.1731, "p90": None}],
    }


def test_plain_values() -> None:
    assert plain({"track": Track.GPU, "set": frozenset({1})}) == {"track": "gpu", "set": [1]}
    assert plain(Fact("a", ("b",))) == {"label": "a", "parts": ["b"], "style": ""}


def test_csv_has_raw_values_and_empty_cells() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(DOCUMENT))))
    assert rows == [
        {"span": "cycle", "median_ms": "7.1731", "share": "1", "raw": "0.1"},
        {"span": "target.metadata", "median_ms": "", "share": "0.5", "raw": ""},
    ]
