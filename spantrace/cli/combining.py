"""Campaigns of several days side by side, the range that holds them, and a final re-run in a column of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spantrace.cli.gating import gate_data, gate_facts
from spantrace.cli.members import Member, doubts, member_data, member_facts, refuse_copies
from spantrace.cli.wording import DOUBT_STYLES
from spantrace.errors import SpantraceError
from spantrace.tables import Cell, Column, Document, Fact, Headline, Row, Table, many, signed_percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analyzers.attribution import Attribution
    from analyzers.envelope import Envelope, Range
    from analyzers.gates import Judged
    from analyzers.statistics import Estimate
    from spantrace.campaign.store import Store
    from spantrace.cli.finished import Runs

_LONGEST_NAME = 8


def check_campaigns(store: Store, others: Sequence[Path], final: Path | None) -> None:
    """SpantraceError where one of these holds no campaign, none with stock measured, or is there twice."""
    from spantrace.campaign.plan import AGAIN, STOCK
    from spantrace.campaign.store import Store, plan_of

    seen, stores = {store.directory.resolve()}, [store]
    for one in [*others, *([final] if final else [])]:
        if one.resolve() in seen:
            raise SpantraceError(f"{one} is the same campaign twice, which confirms nothing; name another directory")
        seen.add(one.resolve())
        stores.append(Store(one, plan_of(one)))
        if not {entry["arm"] for entry in stores[-1].done().values()} & {STOCK, AGAIN}:
            raise SpantraceError(f"the campaign in {one} has no window of stock yet; spantrace ab {one} measures it")
    refuse_copies(stores)


def combined(
    store: Store, shown: tuple[Attribution, Runs], others: Sequence[Path], final: Path | None
) -> tuple[Envelope, tuple[Member, ...]]:
    """This campaign, which shows that, and others by their directories, the final one apart; and each by itself."""
    from analyzers.envelope import envelope
    from spantrace.campaign.store import Store, plan_of
    from spantrace.cli.finished import attributed

    members = [Member(store, *shown)]
    for one in [*others, *([final] if final else [])]:
        other = Store(one, plan_of(one))
        members.append(Member(other, *attributed(other), final=one is final))
    return envelope({one.name: one.found for one in members}, str(final) if final else None), tuple(members)


def envelope_document(found: Envelope) -> Document:
    """The envelope as people read it: a row for every arm's cycle, the targets and the load under it."""
    return combined_document(found, (), ())


def combined_document(found: Envelope, members: Sequence[Member], judged: Sequence[Judged]) -> Document:
    """The envelope with what to doubt in it, the campaigns that it is of, and the gates of the first one."""
    headings = {name: _heading(name, f"day {number}") for number, name in enumerate(found.campaigns, start=1)}
    headings |= {found.final: "final"} if found.final else {}
    known_as = sorted(f"{short} is {name}" for name, short in headings.items() if short != name)
    doubted = doubts(members) if members else ()
    return Document(
        "ab",
        ((many(len(found.campaigns), "campaign"), *(["final re-run"] if found.final else [])),
         *((one,) for one in known_as)),
        _headline(found),
        Table(_columns(found, headings), tuple(_row(one, found) for one in found.ranges)),
        (*gate_facts(judged), *(Fact("doubt", (one,), DOUBT_STYLES[0]) for one in doubted),
         *(member_facts(members, headings) if members else ()), _rule(found)),
        {"campaigns": found.campaigns, "final": found.final, "ranges": found.ranges, "doubts": doubted,
         "members": member_data(members), "gates": gate_data(judged)},
    )  # fmt: skip


def _heading(name: str, short: str) -> str:
    """What the column of a day is called."""
    return name if len(name) <= _LONGEST_NAME and name != "final" else short


def _columns(found: Envelope, headings: Mapping[str, str]) -> tuple[Column, ...]:
    final = [
        Column("final", "final", write=signed_percent, optional=True),
        Column("final_low", "low", only="data"),
        Column("final_high", "high", only="data"),
        Column("final_range", "final 95%", write=signed_percent, only="text"),
    ]
    return (
        Column("arm", "arm"),
        Column("quantity", "quantity", only="data"),
        *(Column(f"day_{number}", headings[name], write=signed_percent, optional=True)
          for number, name in enumerate(found.campaigns)),
        Column("low", "low", only="data"),
        Column("high", "high", only="data"),
        Column("range", "envelope", write=signed_percent, only="text"),
        *(final if found.final else []),
        Column("remark", "remark"),
    )  # fmt: skip


def _rule(found: Envelope) -> Fact:
    """What the envelope is, and how it is decided whether a final re-run confirms it."""
    parts = ["from the lowest to the highest end of the campaigns' 95% intervals, of changes against each campaign's "
             "own stock arm"]  # fmt: skip
    if found.final:
        parts.append("the final re-run is not in it: it lies outside where its own 95% interval and the envelope have "
                     "no change in common")  # fmt: skip
    return Fact("envelope", tuple(parts))


def _headline(found: Envelope) -> Headline:
    if found.outside:
        sentence = f"The final re-run's interval lies outside the envelope in {_named(found.outside)}."
        return Headline("NOT CONFIRMED", (sentence,), "bold red")
    if found.apart:
        sentence = f"No one change lies in all campaigns' intervals of {_named(found.apart)}."
        return Headline("DAYS DIFFER", (sentence,), "bold yellow")
    if not found.known:
        sentence = "No arm but stock again has the intervals of its cycle that would tell: rounds or arms are missing."
        return Headline("NOT KNOWN", (sentence,), "bold yellow")
    rest = [f"It is not known of {_named(found.unknown)}."] if found.unknown else []
    if found.final:
        alike = "The campaigns agree, and the final re-run with them." if len(found.campaigns) > 1 else (
            "The final re-run agrees with the campaign.")  # fmt: skip
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
    cells |= {"range": _bounds(one.low, one.high)}
    if one.final is not None:
        low, high = one.final.low, one.final.high
        cells |= {"final_low": low, "final_high": high, "final_range": _bounds(low, high)}
    unknown = "not known" if (one.confirmed if found.final else one.agrees) is None else None
    remark = "outside" if one.confirmed is False else "days differ" if one.agrees is False else unknown
    cells |= {"final": _value(one.final), "remark": remark}
    name = label(one.quantity)
    return Row(cells, one.arm if one.quantity == CYCLE else f"  {name}", name=f"{one.arm}: {name}")


def _value(change: Estimate | None) -> float | None:
    return None if change is None else change.value


def _bounds(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{signed_percent(low)} .. {signed_percent(high)}"
