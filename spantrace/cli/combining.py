"""Campaigns of several days side by side, the range that holds them, and a final re-run in a column of its own."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from spantrace.cli.gating import gate_data, gate_facts
from spantrace.cli.wording import DOUBT_STYLES
from spantrace.errors import SpantraceError
from spantrace.tables import Cell, Column, Document, Fact, Headline, Row, Table, signed_percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analyzers.attribution import Attribution
    from analyzers.envelope import Envelope, Range
    from analyzers.gates import Judged
    from analyzers.statistics import Estimate
    from spantrace.campaign.plan import Plan
    from spantrace.campaign.store import Store

_LONGEST_NAME = 8


def check_campaigns(store: Store, others: Sequence[Path], final: Path | None) -> None:
    """SpantraceError where one of these directories holds no campaign, none with stock measured, or is named twice."""
    from spantrace.campaign.plan import AGAIN, STOCK
    from spantrace.campaign.store import Store, plan_of

    seen = {store.directory.resolve()}
    for one in [*others, *([final] if final else [])]:
        if one.resolve() in seen:
            raise SpantraceError(f"{one} is the same campaign twice, which confirms nothing; name another directory")
        seen.add(one.resolve())
        if not {entry["arm"] for entry in Store(one, plan_of(one)).done().values()} & {STOCK, AGAIN}:
            raise SpantraceError(f"the campaign in {one} has no window of stock yet; spantrace ab {one} measures it")


def combined(
    store: Store, found: Attribution, others: Sequence[Path], final: Path | None
) -> tuple[Envelope, tuple[str, ...]]:
    """This campaign and others by their directories, the final one apart; and what to doubt in combining them."""
    from analyzers.envelope import envelope
    from spantrace.campaign.store import Store, plan_of
    from spantrace.cli.finished import attributed

    more = {str(one): Store(one, plan_of(one)) for one in [*others, *([final] if final else [])]}
    days = {str(store.directory): found, **{name: attributed(other)[0] for name, other in more.items()}}
    doubts = _doubts(store.plan, {name: other.plan for name, other in more.items()})
    return envelope(days, str(final) if final else None), doubts


def _doubts(plan: Plan, others: Mapping[str, Plan]) -> tuple[str, ...]:
    """In what the other plans differ, but for how often each arm is measured."""
    apart = {
        name: [one.name for one in fields(plan) if one.name != "repeats"
               and getattr(plan, one.name) != getattr(other, one.name)]
        for name, other in others.items()
    }  # fmt: skip
    return tuple(f"the plan of {name} has other {', '.join(keys)}" for name, keys in apart.items() if keys)


def envelope_document(found: Envelope) -> Document:
    """The envelope as people read it: a row for every arm's cycle, the targets and the load under it."""
    return combined_document(found, (), ())


def combined_document(found: Envelope, doubts: Sequence[str], judged: Sequence[Judged]) -> Document:
    """The envelope with what to doubt in it, and with the gates of this campaign."""
    names = [_column(name, f"day {number}") for number, name in enumerate(found.campaigns, start=1)]
    days = [Column(f"day_{number}", name, write=signed_percent, optional=True) for number, name in enumerate(names)]
    final = _column(found.final, "final") if found.final else ""
    columns = [
        Column("arm", "arm"),
        Column("quantity", "quantity", only="data"),
        *days,
        Column("low", "low", only="data"),
        Column("high", "high", only="data"),
        Column("range", "envelope", write=signed_percent, only="text"),
        *([Column("final", final, write=signed_percent)] if found.final else []),
        Column("remark", "remark"),
    ]
    known_as = {f"{short} is {name}" for short, name in zip(names, found.campaigns, strict=True) if short != name}
    return Document(
        "ab",
        ((f"{len(found.campaigns)} campaigns", *([f"final re-run {found.final}"] if found.final else [])),
         *((one,) for one in sorted(known_as))),
        _headline(found),
        Table(tuple(columns), tuple(_row(one, found) for one in found.ranges)),
        (*gate_facts(judged), *(Fact("doubt", (one,), DOUBT_STYLES[0]) for one in doubts),
         Fact("envelope", ("from the lowest to the highest end of the campaigns' 95% intervals, of changes against",
                           "each campaign's own stock arm; the final re-run is not in it"))),
        {"campaigns": found.campaigns, "final": found.final, "ranges": found.ranges, "doubts": tuple(doubts),
         "gates": gate_data(judged)},
    )  # fmt: skip


def _column(name: str, short: str) -> str:
    return name if len(name) <= _LONGEST_NAME else short


def _headline(found: Envelope) -> Headline:
    if found.outside:
        sentence = f"The final re-run lies outside the envelope in {_named(found.outside)}."
        return Headline("NOT CONFIRMED", (sentence,), "bold red")
    if found.apart:
        sentence = f"No one change lies in all campaigns' intervals of {_named(found.apart)}."
        return Headline("DAYS DIFFER", (sentence,), "bold yellow")
    if not found.known:
        sentence = "No arm but stock again has the intervals of its cycle that would tell: rounds or arms are missing."
        return Headline("NOT KNOWN", (sentence,), "bold yellow")
    rest = [f"It is not known of {_named(found.unknown)}."] if found.unknown else []
    if found.final:
        alike = "The campaigns agree, and the final re-run lies among them." if len(found.campaigns) > 1 else (
            "The final re-run lies in the campaign's interval.")  # fmt: skip
        return Headline("CONFIRMED", (alike, *rest), "bold green")
    return Headline("DAYS AGREE", ("The intervals of all campaigns have a change in common.", *rest), "bold green")


def _named(ranges: Sequence[Range]) -> str:
    from spantrace.cli.attributing import label

    names = [f"{label(one.quantity)} of {one.arm}" for one in ranges]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _row(one: Range, found: Envelope) -> Row:
    from analyzers.quantities import CYCLE
    from spantrace.cli.attributing import label

    cells: dict[str, Cell] = {"arm": one.arm, "quantity": str(one.quantity), "low": one.low, "high": one.high}
    cells |= {f"day_{number}": _value(change) for number, change in enumerate(one.changes)}
    if one.low is not None and one.high is not None:
        cells["range"] = f"{signed_percent(one.low)} .. {signed_percent(one.high)}"
    unknown = "not known" if (one.confirmed if found.final else one.agrees) is None else None
    remark = "outside" if one.confirmed is False else "days differ" if one.agrees is False else unknown
    cells |= {"final": _value(one.final), "remark": remark}
    name = label(one.quantity)
    return Row(cells, one.arm if one.quantity == CYCLE else f"  {name}", name=f"{one.arm}: {name}")


def _value(change: Estimate | None) -> float | None:
    return None if change is None else change.value
