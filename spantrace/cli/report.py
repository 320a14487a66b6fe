"""`spantrace report`: span table, co-saturation verdict, economics and trust checks of one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from spantrace.cli.making import force_option, refuse_output
from spantrace.cli.options import OutputPath, format_option
from spantrace.cli.ranking import RankChoice

if TYPE_CHECKING:
    from analyzers.span_table import SpanRow
    from spantrace.recording import Recording
    from spantrace.spans import Kind
    from spantrace.tables import Cell, Document, Row, Table

_BASELINE_SHARES = frozenset({"model", "vllm", "tensor_parallel", "gpu", "host", "cpu", "batch"})
"""What a baseline must share with the recording; how it schedules and compiles without a drafter is its own."""


@click.command("report")
@click.argument("file", type=click.Path())
@click.option("--baseline", type=click.Path(), help="Recording without speculation, for the break-even length.")
@click.option("--kind", default="steady", show_default=True, help="Kind of cycles: steady, prefill, mixed, ... or all.")
@click.option("--rank", type=RankChoice(), metavar="N|all",
              help="Of several ranks: report rank N, or all (default: the slowest beside the others).")  # fmt: skip
@click.option("--html", "page", type=OutputPath(dir_okay=False), metavar="PAGE.html",
              help="Also write a page to look at: the median cycle as a timeline, and the report.")  # fmt: skip
@force_option
@format_option
def command(
    file: str, baseline: str | None, kind: str, rank: str | None, page: str | None, force: bool, form: str
) -> None:
    """Say who bounds the cycle of the recording FILE and what each span of it costs."""
    from pathlib import Path

    from spantrace.cli.ranking import of_asked, with_ranks
    from spantrace.cli.wording import warn
    from spantrace.loading import load
    from spantrace.tables import Format
    from spantrace.terminal import emit

    if page:
        refuse_output(Path(page), force=force, inputs=[Path(name) for name in (file, baseline) if name])
    whole = load(Path(file))
    recording = of_asked(whole, rank)
    base = of_asked(load(Path(baseline)), None) if baseline else None
    kinds = _kinds(kind)
    document = _sampled(recording, (baseline, page, kind)) or with_ranks(
        report(recording, base, kinds), whole, kinds, rank
    )
    if page:
        from spantrace.cli.picturing import write_page

        write_page(Path(page), document, recording, kinds, Path(file).name)
    warn(document, Format(form))
    emit(document, Format(form))


def _sampled(recording: Recording, asked: tuple[str | None, str | None, str]) -> Document | None:
    """The report of a recording that was sampled, which has no cycles for a baseline, a page or a kind; else None."""
    from spantrace.cli.sampled import sampled_report
    from spantrace.errors import SpantraceError

    document = sampled_report(recording)
    if document is not None and asked != (None, None, "steady"):
        raise SpantraceError("the recording is sampled, it holds no cycles; leave out --baseline, --html and --kind")
    return document


def _kinds(name: str) -> frozenset[Kind]:
    from spantrace.cli.wording import kind_names, kinds_of

    if name not in kind_names():
        raise click.BadParameter(f"{name!r} is none of {', '.join(kind_names())}", param_hint="--kind")
    return kinds_of(name)


def report(recording: Recording, baseline: Recording | None, kinds: frozenset[Kind]) -> Document:
    """Analyse the cycles of `kinds`; a recording without any of them is an error that says what it has."""
    from analyzers.co_saturation import BUSY, co_saturation
    from analyzers.economics import economics
    from analyzers.graph_parts import graph_parts
    from analyzers.sensitivity import sensitivity
    from analyzers.span_table import span_table
    from analyzers.trust import trust
    from spantrace.cli import wording
    from spantrace.cli.fired import optimization_facts
    from spantrace.cli.graph_wording import graph_facts
    from spantrace.cli.sensitivity import by_delays
    from spantrace.cli.traces import trace_facts
    from spantrace.cli.trusting import trust_facts
    from spantrace.errors import SpantraceError
    from spantrace.tables import Document

    saturation = co_saturation(recording, kinds)
    if saturation is None:
        raise SpantraceError(_nothing(recording, kinds))
    if baseline is not None:
        _check_baseline(recording, baseline)
    table = span_table(recording, kinds, saturation)
    earned, trusted = economics(recording, baseline, kinds), trust(recording, kinds, table)
    verdict, delayed = wording.verdict(saturation), sensitivity(recording)
    created, graphs = str(recording.header.get("created") or ""), graph_parts(recording, kinds)
    return Document(
        "report",
        (wording.configuration_line(recording, kinds), wording.cycles_line(trusted, recording, kinds)),
        replace(verdict, sentences=(*verdict.sentences, *by_delays(delayed))),
        costs(table.rows, gpu=saturation.gpu is not None),
        (
            *(trace_facts(recording.header) or [wording.speculation(earned, wording.is_synthetic(recording))]),
            *optimization_facts(recording.header),
            *graph_facts(graphs),
            *trust_facts(trusted, created),
        ),
        {
            "header": recording.header,
            "kinds": sorted(kind.name.lower() for kind in kinds),
            "co_saturation": {
                **asdict(saturation),
                "saturated_from_share": BUSY,
                "host_win_ms": saturation.host_win,
                "gpu_win_ms": saturation.gpu_win,
            },
            "spans": table.rows,
            **({"sensitivity": delayed} if delayed else {}),
            **({"graph_parts": graphs} if graphs else {}),
            "economics": {**asdict(earned), "speedup": earned.speedup},
            "trust": trusted,
        },
    )


def _nothing(recording: Recording, kinds: frozenset[Kind]) -> str:
    """Why there is no table of the cycles of `kinds`: there is none, or none with its spans known."""
    from analyzers.per_cycle import chosen_cycles
    from analyzers.trust import left_out
    from spantrace.tables import many

    chosen = chosen_cycles(recording, kinds)
    if chosen.any() and not recording.cycles.detail[chosen].any():
        found = many(int(chosen.sum()), "cycle")
        return f"of the {found} of this kind none was recorded in detail; record more, or with --detail-every 1"
    held = ", ".join(f"{count} {name}" for name, count in left_out(recording, frozenset()).items()) or "no cycle"
    return f"no cycle of this kind in the recording, it has {held}; try --kind all, or record longer"


def _check_baseline(recording: Recording, baseline: Recording) -> None:
    from analyzers.compare import differences
    from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError

    others = [one for one in differences(recording, baseline) if one.key in _BASELINE_SHARES]
    if others:
        listed = "; ".join(f"{one.key}: {one.a} against {one.b}" for one in others)
        raise SpantraceError(
            f"the baseline is of another configuration: {listed}; record the same server without a drafter",
            EXIT_NOT_COMPARABLE,
        )


def costs(rows: Sequence[SpanRow], *, gpu: bool) -> Table:
    """The rows of a span table, with the GPU's columns or without."""
    from spantrace.tables import Column, Table, number, percent

    columns = [Column("span", "span")]
    for side in ("host", *(["gpu"] if gpu else [])):
        group = f"{'GPU' if side == 'gpu' else side} ms"
        columns += [
            Column(f"{side}_median_ms", "median", group, number),
            Column(f"{side}_p90_ms", "p90", group, number, optional=True),
            Column(f"{side}_share", "share", group, percent),
            Column(f"{side}_share", "", bar=True, style=_BAR_STYLES[side]),
        ]
    columns.append(Column("calls", "calls", write=lambda calls: f"{calls:.3g}"))
    return Table(tuple(columns), tuple(_row(row) for row in rows))


_BAR_STYLES = {"host": "cyan", "gpu": "green"}


def _row(row: SpanRow) -> Row:
    from spantrace.spans import own_name
    from spantrace.tables import Row

    cells: dict[str, Cell] = {"span": row.name, "calls": row.calls}
    for side, cost in (("host", row.host), ("gpu", row.gpu)):
        if cost is not None:
            cells |= {f"{side}_median_ms": cost.ms, f"{side}_p90_ms": cost.p90, f"{side}_share": cost.share}
    flag = "  (wait)" if row.wait else "  (thread)" if row.own_thread else ""
    return Row(
        cells,
        "  " * row.depth + own_name(row.name) + flag,
        "dim" if row.wait or row.calls is None else "",
        row.name + flag,
    )
