"""`spantrace bench`: each optimization against the code that it replaces, and against what the memory allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spantrace.cli.cycle_options import context_option, draft_length_option, geometry_option, layers_option
from spantrace.cli.options import MOST_REQUESTS, device_option, dtype_option, format_option, ids_argument

if TYPE_CHECKING:
    from optimized.optimization import Optimization
    from optimized.reference_cycle.settings import Settings
    from spantrace.cli.contests import Measured
    from spantrace.tables import Cell, Document, Fact, Headline, Row, Table


@click.command("bench")
@ids_argument
@device_option
@dtype_option
@geometry_option
@layers_option
@click.option("--batch", default="8", show_default=True, help="Requests in flight; several as 1,8,32.")
@context_option
@draft_length_option
@click.option("--repeats", type=click.IntRange(6, 10_000), default=30, show_default=True, help="Pairs of samples.")
@format_option
def command(ids: tuple[str, ...], batch: str, repeats: int, form: str, **sizes: Any) -> None:
    """Time the optimizations IDS, or all, in turns with the code that each replaces.

    In CUDA graphs on a GPU, as plain calls on a CPU.
    """
    from spantrace.cli.optimizing import chosen, ready
    from spantrace.cli.wording import warn
    from spantrace.tables import Format
    from spantrace.terminal import emit

    batches = _numbers(batch)
    items, left_out = ready(chosen(ids), "time", sizes["device"], _not_timed)
    from optimized.reference_cycle.load import Lengths
    from spantrace.cli.contests import measure

    settings = _settings(**sizes)
    Lengths.within(settings)
    bandwidth, measured = measure(items, settings, batches, repeats)
    result = document(measured, settings, bandwidth, left_out)
    warn(result, Format(form))
    emit(result, Format(form))


def _not_timed(item: Optimization) -> list[str]:
    return [] if item.contest is not None else ["it declares nothing to be timed on"]


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 9 and 1 <= int(part) <= MOST_REQUESTS for part in parts):
        said = f"{text!r} is not a list of numbers from 1 to {MOST_REQUESTS}, such as 1,8,32"
        raise click.BadParameter(said, param_hint="--batch")
    return list(dict.fromkeys(map(int, parts)))


def _settings(geometry: str, layers: int | None, device: str | None, dtype: str | None, **same: Any) -> Settings:
    from dataclasses import replace

    from optimized.judging import choose_place
    from optimized.reference_cycle.geometry import GEOMETRIES
    from optimized.reference_cycle.settings import Settings

    place, shape = choose_place(device, dtype), GEOMETRIES[geometry].scaled(layers)
    return replace(Settings(shape, device=place.device, dtype=place.dtype), **same)


def document(measured: list[Measured], settings: Settings, bandwidth: float, left_out: dict[str, str]) -> Document:
    """One row an optimization and batch size; `left_out` says by id why others have none."""
    from spantrace.cli.optimizing import machine
    from spantrace.tables import Document

    layers = f"{settings.geometry.layers} layers"
    sizes = f"{settings.geometry.name}, {layers}, K={settings.draft_length}, context {settings.context:,}"
    return Document(
        "bench",
        ((*machine(settings.device, settings.dtype), sizes),),
        _headline(measured),
        _table(measured),
        tuple(_facts(measured, bandwidth, left_out)),
        {
            "device": settings.device,
            "dtype": settings.dtype,
            "geometry": settings.geometry.name,
            "layers": settings.geometry.layers,
            "draft_length": settings.draft_length,
            "context": settings.context,
            "copy_bandwidth": bandwidth,
            "measured": measured,
            "not_timed": left_out,
        },
    )


def _headline(measured: list[Measured]) -> Headline:
    from spantrace.tables import Headline

    faster = [one for one in measured if one.shown and one.speedup.value > 1]
    word = f"FASTER in {len(faster)} of {len(measured)}"
    ranges = []
    for name in dict.fromkeys(one.optimization for one in measured):
        own = [one for one in measured if one.optimization == name]
        low, high = (f"{pick(one.speedup.value for one in own):.2f}x" for pick in (min, max))
        said = low if low == high else f"{low} to {high}"
        noisy = any(one.noisy for one in own)
        doubt = " (not shown)" if not any(one.shown for one in own) else " (noisy)" if noisy else ""
        ranges.append(f"{name} {said}{doubt}")
    return Headline(word, (f"{', '.join(ranges)}.",), "bold green" if len(faster) == len(measured) else "bold yellow")


def _table(measured: list[Measured]) -> Table:
    from spantrace.tables import Column, Table, number

    def share(value: float) -> str:
        return f"{value:.1%}"

    columns = (
        Column("optimization", "optimization"),
        Column("batch", "batch", write=lambda batch: f"{batch:.0f}"),
        Column("stock_us", "stock", "us a call", number),
        Column("stock_low_us", "low", only="data"),
        Column("stock_high_us", "high", only="data"),
        Column("stock_spread", "+-", "us a call", share, optional=True, only="text"),
        Column("fast_us", "fast", "us a call", number),
        Column("fast_low_us", "low", only="data"),
        Column("fast_high_us", "high", only="data"),
        Column("fast_spread", "+-", "us a call", share, optional=True, only="text"),
        Column("speedup", "speedup", write=lambda ratio: f"{ratio:.2f}x", style=_colour),
        Column("interval", "95% interval", optional=True, only="text"),
        Column("speedup_low", "low", only="data"),
        Column("speedup_high", "high", only="data"),
        Column("moved_bytes", "MB", "memory floor", lambda moved: number(moved / 1e6), optional=True),
        Column("floor_us", "us", "memory floor", number),
        Column("of_floor", "fast is", "memory floor", lambda ratio: f"{number(ratio)}x"),
        Column("timed", "timed", only="data"),
    )
    return Table(columns, tuple(_row(one) for one in measured))


def _row(one: Measured) -> Row:
    from spantrace.cli.contests import spread
    from spantrace.tables import Row

    cells: dict[str, Cell] = {"optimization": one.optimization, "batch": one.batch, "timed": one.timed}
    for side, estimate in (("stock", one.stock), ("fast", one.fast)):
        cells |= {f"{side}_us": estimate.value, f"{side}_low_us": estimate.low, f"{side}_high_us": estimate.high}
        cells[f"{side}_spread"] = spread(estimate)
    low, high = one.speedup.low, one.speedup.high
    cells |= {"speedup": one.speedup.value, "speedup_low": low, "speedup_high": high}
    cells["interval"] = "-" if low is None or high is None else f"{low:.2f} .. {high:.2f}"
    cells |= {"moved_bytes": one.moved, "floor_us": one.floor, "of_floor": one.fast.value / one.floor}
    label = one.optimization + "  (host)" * (one.timed == "host")
    return Row(cells, label, "" if one.shown else "dim", label)


def _colour(ratio: Cell) -> str:
    return "green" if isinstance(ratio, float) and ratio > 1 else "red"


def _facts(measured: list[Measured], bandwidth: float, left_out: dict[str, str]) -> list[Fact]:
    from spantrace.cli.contests import NOISY
    from spantrace.cli.wording import DOUBT_STYLES
    from spantrace.tables import Fact, number

    works = {one.optimization: one.work for one in measured}
    ways = {"graphs": "in CUDA graphs", "calls": "as plain calls", "host": "on the host where marked"}
    said = " and ".join(text for way, text in ways.items() if any(one.timed == way for one in measured))
    pairs = f"{measured[0].speedup.n} pairs"
    facts = [
        Fact("a call", tuple(f"{name}: {work}" for name, work in works.items())),
        Fact("timed", (f"{said}, stock (the code that is replaced) and fast in turns, {pairs}, medians",)),
        Fact(
            "floor", (f"bytes that must be moved, at a large copy's {number(bandwidth / 1e9)} GB/s; caches are faster",)
        ),
    ]
    kept = dict.fromkeys((one.optimization, one.why_not_captured) for one in measured if one.why_not_captured)
    facts += [Fact("host", (f"{name} cannot be captured: {why}",), DOUBT_STYLES[0]) for name, why in kept]
    noisy = ", ".join(f"{one.optimization} at batch {one.batch}" for one in measured if one.noisy)
    if noisy:
        advice = "quiet the machine, or give it fewer threads (OMP_NUM_THREADS)"
        facts.append(Fact("doubt", (f"{noisy}: samples scatter by more than {NOISY:.0%}; {advice}",), DOUBT_STYLES[0]))
    return [*facts, *(Fact("not timed", (f"{name}: {why}",), DOUBT_STYLES[0]) for name, why in left_out.items())]
