"""What is said of two recordings of which one at least was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantrace.cli.sampled import LABEL
from spantrace.tables import Column, Document, Fact, Headline, Row, Table, percent, probability

if TYPE_CHECKING:
    from analyzers.sampled_compare import SampledComparison, ShareDelta
    from spantrace.tables import Cell


def sampled_comparison(found: SampledComparison, names: tuple[str, str], files: tuple[str, str]) -> Document:
    """The shares side by side; `files` is what `names` stand for."""
    labels = [file if file == name else f"{name} = {file}" for name, file in zip(names, files, strict=True)]
    treatment = ", ".join(f"{one.key} {one.a} -> {one.b}" for one in found.differences) or "none (A/A)"
    counts = [
        f"{name}: {samples:,} samples in cycles" if sampled else f"{name}: measured, mean shares of steady cycles"
        for name, sampled, samples in zip(names, found.sampled, found.samples, strict=True)
    ]
    return Document(
        "compare",
        ((" -> ".join(labels), f"treatment: {treatment}"), tuple(counts)),
        _headline(found),
        _table(found, names),
        _facts(found),
        {"a": files[0], "b": files[1], "sampled": found.sampled, "differences": found.differences, "rows": found.rows},
    )


def _headline(found: SampledComparison) -> Headline:
    sentences = ["Shares of the host's time in cycles; how long a cycle takes was not measured on every side."]
    if not all(found.sampled):
        sentences.append("One side is measured: what a span holds is not quite the same there, so this is rough.")
    return Headline(LABEL, tuple(sentences), "bold magenta")


def _table(found: SampledComparison, names: tuple[str, str]) -> Table:
    columns = (
        Column("span", "span"),
        Column("a_share", f"{names[0]} share", write=percent),
        Column("b_share", f"{names[1]} share", write=percent),
        Column("shown", "points", only="text"),
        Column("interval", "95% interval", only="text"),
        Column("delta", "delta", write=percent, only="data"),
        Column("delta_low", "low", write=percent, only="data"),
        Column("delta_high", "high", write=percent, only="data"),
        Column("p", "p", write=probability),
    )
    return Table(columns, tuple(_row(row) for row in found.rows))


def _row(row: ShareDelta) -> Row:
    from spantrace.spans import own_name

    cells: dict[str, Cell] = {"span": row.name, "delta": row.delta, "delta_low": row.low, "delta_high": row.high}
    cells |= {f"{side}_share": None if one is None else one.value for side, one in (("a", row.a), ("b", row.b))}
    if row.delta is None or row.low is None or row.high is None:
        cells |= {"shown": "-", "interval": "not enough"}
    else:
        shown = f"{100 * row.delta:+.1f}" if row.shown else "~"
        cells |= {"shown": shown, "interval": f"{100 * row.low:+.1f} .. {100 * row.high:+.1f}", "p": row.p}
    return Row(cells, "  " * row.depth + own_name(row.name), name=row.name)


def _facts(found: SampledComparison) -> tuple[Fact, ...]:
    from analyzers.sampled import FEWEST, FEWEST_IN_SPAN

    test = "two binomial shares" if all(found.sampled) else "no p: the measured side's scatter is not in the interval"
    enough = f"not enough: fewer than {FEWEST_IN_SPAN} samples in the span, or {FEWEST} in cycles"
    return (Fact("test", (test, enough, "points are of a hundred")),)
