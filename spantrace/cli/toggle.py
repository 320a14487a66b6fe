"""`spantrace toggle`: switch optimizations of a live server on and off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spantrace.cli.options import directory_option, format_option, restore_option

if TYPE_CHECKING:
    from spantrace.tables import Document, Row
    from spantrace.vllm_adapter.live import Outcome
    from spantrace.vllm_adapter.servers import Server


@click.command("toggle")
@click.argument("server")
@click.option("--on", default="", metavar="IDS", help="Optimizations to switch on, as a,b.")
@click.option("--off", default="", metavar="IDS", help="Optimizations to switch off, as a,b, or all that are on.")
@restore_option
@directory_option
@format_option
def command(server: str, on: str, off: str, restore_stock: str, directory: Path | None, form: str) -> None:
    """Switch optimizations of a running SERVER (:PORT, URL or pid), between two of its steps and without a restart.

    Answers when it is in force; nothing is changed where one of them cannot be switched live. A fix that was restored
    to stock is put back with --off stock-ID.
    """
    from spantrace.control import default_directory
    from spantrace.errors import SpantraceError
    from spantrace.packages import refuse_stranger
    from spantrace.tables import Format
    from spantrace.terminal import emit
    from spantrace.vllm_adapter.live import switch, switched_on
    from spantrace.vllm_adapter.servers import find

    if not on and not off and restore_stock == "none":
        raise SpantraceError("name what to switch: --on IDS, --off IDS, or both (spantrace optimizations lists them)")
    refuse_stranger("optimized")
    place, coming = directory or default_directory(), _coming(on, restore_stock)
    found = find(server, place)
    leaving = switched_on(found, place) if off == "all" else _ids(off)
    done = switch(found, coming, leaving, place)
    emit(document(found, done, [*coming, *leaving]), Format(form))


def _ids(text: str) -> list[str]:
    import optimized

    return optimized.select(text) if text else []


def _coming(on: str, restore_stock: str) -> list[str]:
    import optimized

    return optimized.with_stock(_ids(on), _ids(restore_stock))


def document(server: Server, done: Outcome, asked: list[str]) -> Document:
    """What is on and off now, and what was counted by what was switched off."""
    from spantrace.cli.optimizing import restored
    from spantrace.switched import from_counts
    from spantrace.tables import Column, Document, Fact, Headline, Table

    counted = {one["id"]: from_counts(one) for one in done.counts}
    columns = [Column("id", "optimization"), Column("before", "before"), Column("now", "now")]
    columns += [Column(name, name, write=lambda count: f"{count:,.0f}") for name in ("hits", "fallbacks", "errors")]
    rows = [_row(name, done, counted.get(name)) for name in dict.fromkeys([*asked, *done.on])]
    changed = [*(f"{name} is on" for name in done.switched_on), *(f"{name} is off" for name in done.switched_off)]
    when = f"between two steps, {done.ms:.1f} ms after it was asked"
    headline = (
        Headline("SWITCHED", (f"{', '.join(changed)}: {when}.",), "bold green")
        if changed
        else Headline("UNCHANGED", ("All of it was so already.",))
    )
    facts = [Fact("restored", (sentence,)) for sentence in restored(done.on)]
    facts += [Fact("doubt", (one.warning,), "yellow") for one in counted.values() if one.warning]
    data = {"server": server.root, "on": done.on, "ms": done.ms, "optimizations": [row.cells for row in rows]}
    heading = ((server.model(), f"vLLM {server.vllm}", f"process {server.root}"),)
    return Document("toggle", heading, headline, Table(tuple(columns), tuple(rows)), tuple(facts), data)


def _row(name: str, done: Outcome, counted: object) -> Row:
    from spantrace.tables import Cell, Row

    now = name in done.on
    before = now is (name not in (*done.switched_on, *done.switched_off))
    cells: dict[str, Cell] = {"id": name, "before": "on" if before else "off", "now": "on" if now else "off"}
    cells |= {key: getattr(counted, key, None) for key in ("hits", "fallbacks", "errors")}
    return Row(cells, name, "green" if now else "dim")
