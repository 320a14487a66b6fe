"""Campaigns of several days side by side, the range that holds them, and a final re-run in a column of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantrace.tables import Cell, Column, Document, Fact, Headline, Row, Table, signed_percent

if TYPE_CHECKING:
    from analyzers.envelope import Envelope, Range
    from analyzers.statistics import Estimate


def envelope_document(found: Envelope) -> Document:
    """The envelope as people read it: a row for every arm's cycle, the targets and the load under it."""
    days = [Column(f"day_{number}", name, write=signed_percent) for number, name in enumerate(found.campaigns)]
    columns = [
        Column("arm", "arm"),
        Column("quantity", "quantity", only="data"),
        *days,
        Column("low", "low", only="data"),
        Column("high", "high", only="data"),
        Column("range", "envelope", write=signed_percent, only="text"),
        *([Column("final", found.final, write=signed_percent)] if found.final else []),
        Column("remark", "remark"),
    ]
    return Document(
        "ab",
        ((f"{len(found.campaigns)} campaigns", *([f"final re-run {found.final}"] if found.final else [])),),
        _headline(found),
        Table(tuple(columns), tuple(_row(one) for one in found.ranges)),
        (Fact("envelope", ("from the lowest to the highest end of the campaigns' 95% intervals, of changes against",
                           "each campaign's own stock arm; the final re-run is not in it")),),
        {"campaigns": found.campaigns, "final": found.final, "ranges": found.ranges},
    )  # fmt: skip


def _headline(found: Envelope) -> Headline:
    apart = [one for one in found.ranges if one.agrees is False]
    outside = [one for one in found.ranges if one.confirmed is False]
    if outside:
        return Headline(
            "NOT CONFIRMED", (f"The final re-run lies outside the envelope in {_named(outside)}.",), "bold red"
        )
    if apart:
        return Headline("DAYS DIFFER", (f"No one change lies in all campaigns' intervals of {_named(apart)}.",),
                        "bold yellow")  # fmt: skip
    if found.final:
        sentence = "The campaigns agree, and the final re-run lies among them."
        return Headline("CONFIRMED", (sentence,), "bold green")
    return Headline("DAYS AGREE", ("The intervals of all campaigns have a change in common.",), "bold green")


def _named(ranges: list[Range]) -> str:
    from spantrace.cli.attributing import label

    names = [f"{label(one.quantity)} of {one.arm}" for one in ranges]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _row(one: Range) -> Row:
    from analyzers.quantities import CYCLE
    from spantrace.cli.attributing import label

    cells: dict[str, Cell] = {"arm": one.arm, "quantity": str(one.quantity), "low": one.low, "high": one.high}
    cells |= {f"day_{number}": _value(change) for number, change in enumerate(one.changes)}
    if one.low is not None and one.high is not None:
        cells["range"] = f"{signed_percent(one.low)} .. {signed_percent(one.high)}"
    remark = "outside the envelope" if one.confirmed is False else "days differ" if one.agrees is False else None
    cells |= {"final": _value(one.final), "remark": remark}
    name = label(one.quantity)
    return Row(cells, one.arm if one.quantity == CYCLE else f"  {name}", name=f"{one.arm}: {name}")


def _value(change: Estimate | None) -> float | None:
    return None if change is None else change.value
