"""The ranks of a recording in a report: which one it is of, how they keep pace, and what their communication takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from spantrace.tables import Cell, Column, Document, Fact, Headline, Row, Section, Table, number, percent

if TYPE_CHECKING:
    from analyzers.ranks import RankRow, Ranks
    from spantrace.recording import Recording
    from spantrace.spans import Kind

ALL = "all"
SIDE_BY_SIDE = 2
"""Of more ranks the table has the least and the most only, unless all are asked for."""
_SIDES = (("host", "host ms"), ("gpu", "GPU ms"), ("communication", "of it comm."))


class RankChoice(click.ParamType[str]):
    """A rank's number, or "all"."""

    name = "rank"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is; a usage error where it is neither."""
        return value if value == ALL or value.isdecimal() else self.fail(f"{value!r} is no rank and not all.")


def of_asked(whole: Recording, asked: str | None) -> Recording:
    """What the report is of: the rank that was asked for, or the slowest."""
    from spantrace.ranks import of_chosen

    return of_chosen(whole, None if asked in (None, ALL) else int(asked or 0))


def with_ranks(document: Document, whole: Recording, kinds: frozenset[Kind], asked: str | None) -> Document:
    """The report of one rank of a recording with what there is to say of the others; itself where there is one only."""
    from analyzers.ranks import rank_skew

    found = rank_skew(whole, kinds)
    if found is None:
        traced = _traced_communication(whole, kinds)
        return replace(document, facts=(*traced, *document.facts)) if traced else document
    alone = asked not in (None, ALL)
    data = {**document.data, "rank": int(asked or 0) if alone else found.slowest, "ranks": found}
    return replace(
        document,
        sections=() if alone else (Section(_headline(found), _table(found, every=asked == ALL)), *document.sections),
        facts=(*_verdicts(whole, found, kinds, asked), communication(found), *document.facts),
        data=data,
    )


def communication(found: Ranks) -> Fact:
    """What the ranks spend in communication, or why that is not known."""
    if found.communication_calls:
        told = [
            f"rank {rank} {number(ms)} ms a cycle ({percent(share or 0.0)})"
            for rank, ms, share in zip(found.ranks, found.communication, found.communication_share, strict=True)
            if ms is not None
        ]
        return Fact("ranks", (f"in communication, waits for the others included: {', '.join(told)}",
                              f"{found.communication_calls:.3g} calls a cycle"))  # fmt: skip
    if found.in_graphs:
        why = (
            "communication is inside the CUDA graphs: a part of the GPU's time in them, waits included, not told apart"
        )
    else:
        why = "communication runs on the GPU among the kernels of its spans and is not told apart"
    return Fact("ranks", (why, "a torch.profiler trace of one rank tells its kernels"))


def _traced_communication(recording: Recording, kinds: frozenset[Kind]) -> list[Fact]:
    """What communication takes on one rank's GPU, as another profiler's trace tells; nothing where it has none."""
    from analyzers.per_cycle import measure
    from analyzers.ranks import COMMUNICATION
    from spantrace.spans import Track

    cost = measure(recording, kinds).cost(COMMUNICATION, Track.GPU)
    if cost is None:
        return []
    spent = f"its kernels take {number(cost.ms)} ms of a cycle on the GPU ({percent(cost.share)})"
    return [Fact("communication", (spent, "what they wait for other ranks included"))]


def _headline(found: Ranks) -> Headline:
    if found.behind is None:
        return Headline("RANKS", ("None of them has a target.forward in all of these cycles to compare.",), "bold")
    late = f"{number(found.behind)} ms ({percent(found.behind_share or 0.0)} of a cycle)"
    known = bool(found.communication_calls)
    legend = (
        "begin, end: median ms between the first and the last rank to begin and to end a span; critical: which one "
        "ends it last, in how many cycles."
    )
    if any(value is not None for row in found.rows for value in row.gpu):
        legend += (
            " GPU spans are apart by the end of target.forward, whose last all-reduce ends on all ranks at once."
            if found.end_together
            else " GPU spans are apart by their own GPUs' clocks, each matched to the host's, by up to a cycle off."
        )
    if found.even:
        how = "what they wait in communication differs by" if known else "they begin target.forward within"
        least = f"No rank holds the others up: {how} {late}."
        return Headline("RANKS EVEN", (least, legend), "bold green")
    waits = (
        f"The others wait for it in communication, up to {late}."
        if known
        else f"It begins target.forward {late} after the first one, which waits for it in the first all-reduce."
    )
    longer = ""
    if found.longer is not None and found.tells(found.longer):
        longer = f" It takes {number(found.longer)} ms longer than they do in {found.longest}."
    return Headline(f"RANK {found.slowest} SLOWEST", (waits + longer, legend), "bold yellow")


def _table(found: Ranks, *, every: bool) -> Table:
    """One row a span; a column for each rank, or the least and the most of many."""
    shown = every or len(found.ranks) <= SIDE_BY_SIDE
    titles = [str(rank) for rank in found.ranks] if shown else ["least", "most"]
    columns = [Column("span", "span")]
    for side, group in _SIDES:
        if any(value is not None for row in found.rows for value in getattr(row, side)):
            group = f"{group}, rank" if shown and side != "communication" else group
            columns += [Column(f"{side}_{title}", title, group, number) for title in titles]
    columns += [
        Column("first_skew_ms", "begin", "apart ms", number),
        Column("last_skew_ms", "end", "apart ms", number),
        Column("p90_skew_ms", "p90", "apart ms", number, optional=True),
        Column("critical", "critical"),
    ]
    return Table(tuple(columns), tuple(_row(row, found, titles, shown) for row in found.rows))


def _row(row: RankRow, found: Ranks, titles: Sequence[str], shown: bool) -> Row:
    from spantrace.spans import OVERLAID, WAITS, own_name

    cells: dict[str, Cell] = {"span": row.name}
    for side, _ in _SIDES:
        values = getattr(row, side)
        known = [value for value in values if value is not None]
        ends = values if shown else (min(known, default=None), max(known, default=None))
        cells |= {f"{side}_{title}": value for title, value in zip(titles, ends, strict=True)}
    cells |= {"first_skew_ms": row.first_skew, "last_skew_ms": row.last_skew, "p90_skew_ms": row.p90_skew}
    if row.critical is not None and row.last_skew is not None and found.tells(row.last_skew):
        cells["critical"] = f"{row.critical} ({percent(row.critical_share or 0.0)})"
    flag = "  (wait)" if row.name in WAITS else "  (inside)" if row.name in OVERLAID else ""
    style = "dim" if row.name in WAITS | OVERLAID else ""
    return Row(cells, "  " * (row.depth - 1) + own_name(row.name) + flag, style, row.name + flag)


def _verdicts(whole: Recording, found: Ranks, kinds: frozenset[Kind], asked: str | None) -> list[Fact]:
    """Who bounds the cycle on every rank, where all are asked for."""
    from analyzers.co_saturation import co_saturation
    from spantrace.ranks import of_rank

    facts = []
    for rank in found.ranks if asked == ALL else ():
        if (one := co_saturation(of_rank(whole, rank), kinds)) is not None:
            busy = "" if one.gpu is None else f", its GPU at most {number(one.gpu.ms)} ({percent(one.gpu.share)})"
            host = f"the host works {number(one.host.ms)} of {number(one.period.ms)} ms and waits {number(one.wait.ms)}"
            facts.append(Fact(f"rank {rank}", (one.verdict.value, host + busy)))
    return facts
