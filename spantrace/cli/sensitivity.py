"""`spantrace sensitivity`: delay spans on purpose and see whether the cycle gets longer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli import making
from spantrace.cli.cycle_options import cycle_options
from spantrace.cli.making import force_option, output_option
from spantrace.cli.options import MOST_CYCLES, FiniteRange, directory_option, format_option, refuse_given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analyzers.sensitivity import Sensitivity
    from analyzers.statistics import Estimate
    from spantrace.recording import Recording
    from spantrace.tables import Document, Headline, Row


@click.command("sensitivity")
@click.argument("target", metavar="SERVER | built-in | RECORDING")
@click.option("--span", "spans", multiple=True, metavar="NAME", help="Span to delay on the host; may be repeated "
              "(default: every working part of the cycle).")  # fmt: skip
@click.option("--gpu-span", "gpu_spans", multiple=True, metavar="NAME",
              help="Span before whose launch the GPU is kept busy; may be repeated.")  # fmt: skip
@click.option("--delay", type=FiniteRange(0, min_open=True), default=200.0, show_default=True, metavar="US",
              help="Microseconds by which a cycle is held up, at most 5000.")  # fmt: skip
@click.option(
    "--cycles", type=click.IntRange(20, MOST_CYCLES), default=100, show_default=True, help="Decode cycles of a window."
)
@click.option("--blocks", type=click.IntRange(4, 10_000), default=8, show_default=True,
              help="Pairs of windows of each span, one with the delay and one without.")  # fmt: skip
@click.option("--seconds", type=FiniteRange(0, min_open=True), default=600.0, show_default=True,
              help="Stop after this long.")  # fmt: skip
@click.option("--max-slowdown", type=FiniteRange(0, 0.5, min_open=True), default=0.2, show_default=True,
              metavar="SHARE", help="Refuse a delay that slows the whole down by more.")  # fmt: skip
@cycle_options
@output_option
@force_option
@directory_option
@format_option
def command(target: str, output: Path | None, force: bool, directory: Path | None, form: str, **options: Any) -> None:
    """Delay chosen spans by a known time, in alternating windows, and say by how much of it the cycle gets longer.

    1 is on the critical path, 0 is hidden. A SERVER (:PORT, URL or pid) must have been started by `spantrace serve
    --allow-delays` and be under load; `built-in` is the cycle of `spantrace run`, with its options. A RECORDING that
    this command wrote is read again.
    """
    from spantrace.cli.delaying import record
    from spantrace.cli.wording import warn
    from spantrace.interrupts import ended_by_signals
    from spantrace.loading import load
    from spantrace.tables import Format
    from spantrace.terminal import emit

    if target.endswith((".spantrace", ".part")):
        told = {str(one.name) for one in click.get_current_context().command.params} - {"target", "form"}
        refuse_given(told, f"says how to record, and {target} is recorded already; leave it out")
        recording, name = load(Path(target)), Path(target).name
    else:
        if output:
            making.refuse_output(output, force=force)
        with ended_by_signals():
            recording, name = record(target, output, directory, options, force=force)
    printed = document(recording, name)
    warn(printed, Format(form))
    emit(printed, Format(form))


def document(recording: Recording, name: str) -> Document:
    """The slopes of all spans that were delayed; SpantraceError where none was."""
    from analyzers.sensitivity import sensitivity
    from spantrace.cli.wording import configuration_line
    from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
    from spantrace.spans import Kind
    from spantrace.tables import Column, Document, Fact, Table, number

    found = sensitivity(recording)
    if not found:
        raise SpantraceError(f"no span was delayed in {name}; spantrace sensitivity makes such a recording", 3)
    if not any(one.slope for one in found):
        raise SpantraceError(
            f"{name} holds too few whole blocks to tell anything; run more --blocks", EXIT_NOT_COMPARABLE
        )
    columns = (
        Column("span", "span"),
        Column("track", "on", only="data"),
        Column("delay_us", "delay us", write=number),
        Column("slope", "d(cycle)/d(delay)", write=lambda value: f"{value:.2f}"),
        Column("interval", "95% interval", only="text"),
        Column("low", "low", only="data", write=number),
        Column("high", "high", only="data", write=number),
        Column("blocks", "blocks", write=lambda count: f"{count:.0f}", optional=True),
        Column("path", "is", style=lambda path: _STYLES.get(str(path), "")),
    )
    refused = [Fact("doubt", (f"{one.refused:,} delays of {one.span} were over a limit",), "yellow")
               for one in found if one.refused]  # fmt: skip
    kinds = frozenset({Kind.STEADY, Kind.DELAYED})
    data = {"recording": name, "sensitivity": found}
    rows = tuple(_row(one) for one in found)
    return Document(
        "sensitivity",
        (configuration_line(recording, kinds),),
        _headline(found),
        Table(columns, rows),
        tuple(refused),
        data,
    )


_STYLES = {"critical path": "bold red", "partly hidden": "yellow", "hidden": "green"}


def _row(one: Sensitivity) -> Row:
    from spantrace.tables import Cell, Row

    cells: dict[str, Cell] = {"span": one.span, "track": one.track, "delay_us": one.delay_us, "blocks": one.blocks}
    cells["path"] = one.path.value
    if one.slope:
        cells |= {"slope": one.slope.value, "low": one.slope.low, "high": one.slope.high}
        cells["interval"] = slope_interval(one.slope)
    return Row(cells, one.span + ("  (GPU)" if one.track == "gpu" else ""))


def _headline(found: tuple[Sensitivity, ...]) -> Headline:
    """The spans on the critical path, and those whose work is hidden."""
    from analyzers.sensitivity import Path as Place
    from spantrace.tables import Headline

    def named(place: Place) -> str:
        return ", ".join(one.span for one in found if one.path is place)

    parts = [f"On the critical path: {critical}." if (critical := named(Place.CRITICAL)) else ""]
    parts += [f"Partly hidden: {partly}." if (partly := named(Place.PARTLY)) else ""]
    parts += [f"Hidden: {hidden}." if (hidden := named(Place.HIDDEN)) else ""]
    parts += [f"Not told apart: {unclear}; run more --blocks." if (unclear := named(Place.UNCLEAR)) else ""]
    return Headline("", tuple(part for part in parts if part) or ("Nothing can be told.",))


def by_delays(found: Sequence[Sensitivity]) -> list[str]:
    """What delays on purpose have shown of the cycle, in one sentence; none where they have shown nothing."""
    shown = [(one.span, one.slope) for one in found if one.slope and one.path.told]
    told = [f"{span} {slope.value:.2f} ({slope_interval(slope)})" for span, slope in shown]
    return [f"Of a delay on purpose the cycle takes over: {', '.join(told)}; 1 is critical, 0 hidden."] if told else []


def slope_interval(slope: Estimate) -> str:
    """The interval of a slope as people read it."""
    return f"{slope.low:.2f} .. {slope.high:.2f}"
