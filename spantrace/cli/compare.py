"""`spantrace compare`: two recordings' span tables side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spantrace.cli.options import format_option

if TYPE_CHECKING:
    from pathlib import Path

    from analyzers.compare import Comparison, SpanDelta
    from spantrace.recording import Recording
    from spantrace.switched import Switched
    from spantrace.tables import Cell, Document, Fact, Headline, Row, Table

_LONGEST_NAME = 12
_INTERVAL = len("-100.0% .. +100.0%")
_NAMED, _NOTABLE = 3, 0.02
"""How many spans the headline names, and the share of the cycle's change that each must have."""


@click.command("compare")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--vary", default="", help="Configuration keys that are the treatment, such as drafter,vllm.")
@click.option("--force", is_flag=True, help="Compare in spite of other differing keys.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Compare rank N (default: the slowest of each).")
@click.option("--gate", type=click.Path(dir_okay=False), help="What must hold (gates.toml): exit code 0, 1 or 3.")
@format_option
def command(a: str, b: str, vary: str, force: bool, rank: int | None, gate: str | None, form: str) -> None:
    """Set recording B beside recording A: medians, delta, 95% interval and p of every span.

    A and B are files, or directories of the .spantrace files of several runs each.
    """
    from pathlib import Path

    from analyzers.compare import compare
    from analyzers.gates import exit_code
    from analyzers.sampled_compare import compare_sampled
    from spantrace.cli.gating import gated, judge_sides, read_gates
    from spantrace.cli.sampled_comparing import sampled_comparison
    from spantrace.cli.wording import warn
    from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
    from spantrace.loading import load
    from spantrace.ranks import of_chosen
    from spantrace.tables import Format
    from spantrace.terminal import emit

    gates = read_gates(Path(gate)) if gate else None
    names = _names(Path(a).stem, Path(b).stem)
    sides = [[of_chosen(load(path), rank) for path in _files(Path(side))] for side in (a, b)]
    keys = [key.strip() for key in vary.split(",") if key.strip()]
    files = (Path(a).stem, Path(b).stem)
    if (shares := compare_sampled(sides[0], sides[1], keys, force=force)) is not None:
        if gates:
            raise SpantraceError("gates judge times, and a side is sampled; leave out --gate", EXIT_NOT_COMPARABLE)
        document = sampled_comparison(shares, names, files)
    else:
        document = comparison_document(compare(sides[0], sides[1], keys, force=force), sides, names, files)
    judged = judge_sides(gates, sides, names) if gates else ()
    document = gated(document, gates, judged) if gates else document
    warn(document, Format(form))
    emit(document, Format(form))
    if code := exit_code(judged):
        raise click.exceptions.Exit(code)


def _files(path: Path) -> list[Path]:
    from spantrace.errors import SpantraceError

    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.spantrace"))
    if not found:
        raise SpantraceError(f"{path} holds no .spantrace file; name a recording, or a directory of some")
    return found


def _names(a: str, b: str) -> tuple[str, str]:
    """What the columns are called: the files' stems where they are short and differ, else A and B."""
    return (a, b) if a != b and max(len(a), len(b)) <= _LONGEST_NAME else ("A", "B")


def comparison_document(
    found: Comparison, sides: list[list[Recording]], names: tuple[str, str], files: tuple[str, str]
) -> Document:
    """The comparison as people read it; `files` is what `names` stand for."""
    from analyzers.trust import trust
    from spantrace.cli.fired import optimization_facts
    from spantrace.cli.wording import DOUBT_STYLES
    from spantrace.tables import Document, Fact

    labels = [file if file == name else f"{name} = {file}" for name, file in zip(names, files, strict=True)]
    counts = f"{found.cycles[0]:,} + {found.cycles[1]:,} steady cycles, {found.runs[0]} + {found.runs[1]} runs"
    heading = ((" -> ".join(labels), f"treatment: {_treatment(found, sides)}"), (counts,))
    on = [
        fact
        for name, side in zip(names, sides, strict=True)
        for fact in optimization_facts(side[0].header, f"on in {name}")
    ]
    doubts = [
        Fact(f"doubt of {name}", (doubt.text,), DOUBT_STYLES[doubt.refuse])
        for name, side in zip(names, sides, strict=True)
        for run in side
        for doubt in trust(run).doubts
    ]
    data = {"a": files[0], "b": files[1], "unit": found.unit, "runs": found.runs, "cycles": found.cycles}
    return Document(
        "compare",
        heading,
        _headline(found, names),
        _table(found, names),
        (*on, *_notes(found), *doubts),
        {**data, "differences": found.differences, "optimizations": _on(sides), "rows": found.rows},
    )


def _treatment(found: Comparison, sides: list[list[Recording]]) -> str:
    """What distinguishes B: optimizations and differing configuration keys."""
    on = [[one.id for one in optimizations] for optimizations in _on(sides)]
    parts = [f"-{name}" for name in on[0] if name not in on[1]] + [f"+{name}" for name in on[1] if name not in on[0]]
    parts += [f"{one.key} {one.a} -> {one.b}" for one in found.differences]
    return ", ".join(parts) or "none (A/A)"


def _on(sides: list[list[Recording]]) -> list[tuple[Switched, ...]]:
    """The optimizations of each side, by its first run."""
    from spantrace.switched import switched

    return [switched(side[0].header) for side in sides]


def _headline(found: Comparison, names: tuple[str, str]) -> Headline:
    from spantrace.tables import Headline, number, probability, signed_percent

    cycle = found.rows[0]
    assert cycle.a is not None
    assert cycle.b is not None
    assert cycle.delta is not None
    took = f"{names[1]} takes {number(cycle.b.value)} ms a cycle, {names[0]} {number(cycle.a.value)}"
    bounds = (
        f"95% interval {' '.join(_interval(cycle).split())}, p {probability(cycle.p or 0.0)}"
        if cycle.low is not None
        else "too few values"
    )
    if not cycle.shown:
        return Headline("CYCLE ~", (f"No difference is shown: {took} ({bounds}).",), "bold")
    style = "bold green" if cycle.delta < 0 else "bold red"
    sentences = (f"{took} ({bounds}).", *_where(found))
    return Headline(f"CYCLE {signed_percent(cycle.delta)}", sentences, style)


def _where(found: Comparison) -> list[str]:
    """The working spans without parts that moved the most milliseconds in the cycle's direction."""
    from spantrace.spans import GRAPH_PARTS, OVERLAID, PARENT, WAITS
    from spantrace.tables import number

    moved = {row: row.b.value - row.a.value for row in found.rows if row.a and row.b and row.shown}
    cycle, *rows = moved
    parents = {PARENT[row.name] for row in rows if row.name not in GRAPH_PARTS}
    apart = parents | WAITS | GRAPH_PARTS | OVERLAID | {"cycle"}
    notable = [row for row in rows if row.name not in apart and moved[row] / moved[cycle] >= _NOTABLE]
    most = sorted(notable, key=lambda row: abs(moved[row]), reverse=True)[:_NAMED]
    sign = "-" if moved[cycle] < 0 else "+"
    named = [f"{_label(row)} {sign}{number(abs(moved[row]))} ms" for row in most]
    return [f"Mostly {', '.join(named)}."] if named else []


def _label(row: SpanDelta) -> str:
    from spantrace.spans import Track

    return f"GPU {row.name}" if row.track is Track.GPU else row.name


def _notes(found: Comparison) -> list[Fact]:
    from analyzers.statistics import SIGNIFICANT
    from spantrace.tables import Fact

    tested = sum(row.p is not None for row in found.rows)
    chance = f"`~` is p >= {SIGNIFICANT:.2f}; of {tested} rows {tested * SIGNIFICANT:.1f} would pass it by chance"
    if found.unit == "run":
        return [Fact("test", ("Mann-Whitney on the medians of the runs", chance))]
    blocks = " or ".join(dict.fromkeys(f"{one.units[0]} + {one.units[1]}" for one in found.rows if one.p is not None))
    limits = "with one run on a side it tells these runs apart, whatever the cause: repeat both in turns (ABBA)"
    return [Fact("test", (f"Mann-Whitney on medians of {blocks} blocks of cycles", chance, limits))]


def _table(found: Comparison, names: tuple[str, str]) -> Table:
    from spantrace.tables import Column, Table, number, probability, signed_percent

    columns = (
        Column("span", "span"),
        Column("track", "track", only="data"),
        Column("a_median_ms", f"{names[0]} ms", write=number),
        Column("b_median_ms", f"{names[1]} ms", write=number),
        Column("shown", "delta", write=signed_percent, only="text", style=_colour),
        Column("interval", "95% interval", write=signed_percent, only="text"),
        Column("delta", "delta", write=signed_percent, only="data"),
        Column("delta_low", "low", write=signed_percent, only="data"),
        Column("delta_high", "high", write=signed_percent, only="data"),
        Column("p", "p", write=probability),
        Column("absent", "absent", only="data"),
    )
    return Table(columns, tuple(_row(row, names) for row in found.rows))


def _row(row: SpanDelta, names: tuple[str, str]) -> Row:
    from spantrace.spans import Track, own_name
    from spantrace.tables import Row, signed_percent

    cells: dict[str, Cell] = {"span": row.name, "track": row.track.name.lower(), "p": row.p, "absent": row.absent}
    cells |= {"delta": row.delta, "delta_low": row.low, "delta_high": row.high}
    cells |= {f"{side}_median_ms": None if one is None else one.value for side, one in (("a", row.a), ("b", row.b))}
    if row.absent is not None:
        where = f"absent in {names[0 if row.absent == 'A' else 1]}"
        cells |= {"shown": "-", "interval": where if len(where) <= _INTERVAL else "absent"}
    elif row.delta is not None:
        cells |= {"shown": signed_percent(row.delta) if row.shown else "too few" if row.too_few else "~"}
        cells |= {"interval": _interval(row) if row.low is not None else "-"}
    label = _label(row) if row.track is Track.GPU else "  " * row.depth + own_name(row.name)
    return Row(cells, label, name=_label(row))


def _interval(row: SpanDelta) -> str:
    from spantrace.tables import signed_percent

    if row.low is None or row.high is None:
        return "-"
    return f"{signed_percent(row.low):>6} .. {signed_percent(row.high):>6}"


def _colour(value: Cell) -> str:
    return "dim" if not isinstance(value, str) or value in "~-" else "green" if value.startswith("-") else "red"
