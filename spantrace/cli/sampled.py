"""What is said of a sampled recording: shares of spans in the time of cycles, and that nothing was timed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spantrace.tables import Column, Document, Fact, Headline, Row, Table, percent

if TYPE_CHECKING:
    from analyzers.sampled import SampledRow, SampledTable
    from spantrace.recording import Recording
    from spantrace.sampled import Samples
    from spantrace.tables import Cell

LABEL = "SAMPLED"
_BLIND = 0.1
"""More looks without a stack than this share of them may have missed some functions more than others."""


def record_sampled(server: str, seconds: float, output: Path | None, directory: Path | None, *, force: bool) -> None:
    """Sample the vLLM that `server` names into a file."""
    from spantrace.cli import making
    from spantrace.control import default_directory
    from spantrace.vllm_adapter.servers import find
    from spantrace.vllm_adapter.stack_samples import sample_server
    from spantrace.vllm_adapter.targets import pid_of, without_secrets

    found = find(server, directory or default_directory())
    path = output or making.default_output(f"{found.short_name()}-sampled")
    header = making.new_header(without_secrets(found.command), {"sample": True, "seconds": seconds})
    with making.progress_bar(round(seconds), "sampling", "s") as progress:
        recording = sample_server(found, pid_of(server), seconds, header, progress)
    _save(recording, path, force=force)
    _say_written(recording, path)


def _save(recording: Recording, path: Path, *, force: bool) -> None:
    """Write it where a journal would lie, and say so in a SpantraceError, where a file has appeared at its place."""
    from spantrace.errors import SpantraceError
    from spantrace.journal import journal_path, lies_in

    try:
        recording.save(path, replace=force)
    except SpantraceError as error:
        if not path.exists():
            raise
        recording.save(aside := journal_path(path), replace=False)
        raise SpantraceError(f"{error}; {lies_in(aside)}") from error


def _say_written(recording: Recording, path: Path) -> None:
    from analyzers.sampled import sampled_table

    table = sampled_table(recording)
    assert table is not None
    click.echo(f"{table.cycles:,} samples in cycles -> {path} ({path.stat().st_size / 1e3:.0f} kB)", err=True)


def sampled_report(recording: Recording) -> Document | None:
    """The report of a sampled recording; None of a measured one."""
    from analyzers.sampled import FEWEST, FEWEST_IN_SPAN, sampled_table
    from spantrace.sampled import samples_of

    table, samples = sampled_table(recording), samples_of(recording.header)
    if table is None or samples is None:
        return None
    limits = {"fewest_samples": FEWEST, "fewest_samples_in_span": FEWEST_IN_SPAN}
    return Document(
        "report",
        _heading(recording, samples),
        _headline(table, samples),
        shares(table.rows),
        _facts(table, samples),
        {"header": recording.header, "sampled": True, "verdict": None, **limits, "table": table},
    )


def _heading(recording: Recording, samples: Samples) -> tuple[tuple[str, ...], ...]:
    from spantrace.cli.wording import device, recorded

    server = recording.header.get("server") or {}
    return (
        (
            str(server.get("model")).rpartition("/")[2],
            f"vLLM {server.get('vllm') or 'unknown'}",
            device(recording.header),
        ),
        (
            f"sampled by {samples.by}",
            f"{samples.rate} looks a second for {samples.seconds:.3g} s",
            f"recorded {recorded(recording)}",
        ),
    )


def _headline(table: SampledTable, samples: Samples) -> Headline:
    from analyzers.sampled import FEWEST

    outside = f"{table.cycles:,} samples lie in cycles, {table.idle:,} outside of any"
    nothing = "Nothing was timed: there is no length of a cycle, no GPU and no speculation, and so no verdict."
    if table.enough:
        return Headline(LABEL, (f"Shares of the host's time in cycles: {outside}.", nothing), "bold magenta")
    few = f"Not enough: {outside}; shares need {FEWEST}. Sample for longer, under load."
    return Headline(LABEL, (few, nothing), "bold magenta")


def shares(rows: tuple[SampledRow, ...]) -> Table:
    """The rows of a sampled table, each with the function that it was mostly seen in."""
    columns = (
        Column("span", "span"),
        Column("sampled_share", "share", "sampled", percent),
        Column("interval", "95% interval", only="text"),
        Column("sampled_low", "low", write=percent, only="data"),
        Column("sampled_high", "high", write=percent, only="data"),
        Column("samples", "samples", write=lambda count: f"{count:,.0f}"),
        Column("sampled_share", "", bar=True, style="cyan"),
        Column("function", "function", optional=True),
    )
    return Table(columns, tuple(_row(row) for row in rows))


def _row(row: SampledRow) -> Row:
    from spantrace.spans import own_name

    cells: dict[str, Cell] = {"span": row.name, "samples": row.samples, "interval": interval(row)}
    if row.share is not None:
        cells |= {"sampled_share": row.share.value, "sampled_low": row.share.low, "sampled_high": row.share.high}
    if row.functions:
        cells["function"] = row.functions[0] + (f" +{more}" if (more := len(row.functions) - 1) else "")
    flag = "  (wait)" if row.wait else "  (thread)" if row.own_thread else ""
    return Row(cells, "  " * row.depth + own_name(row.name) + flag, "dim" if row.wait else "", row.name + flag)


def interval(row: SampledRow) -> str:
    """The interval of a share, or that there are not enough samples for one; nothing of the whole."""
    if row.share is None:
        return "not enough"
    return "" if row.name == "cycle" else f"{row.share.low:.1%} .. {row.share.high:.1%}"


def _facts(table: SampledTable, samples: Samples) -> tuple[Fact, ...]:
    from analyzers.sampled import FEWEST_IN_SPAN

    looks = samples.failed + sum(seen.samples for seen in samples.seen if seen.main)
    known = (
        f"{samples.failed:,} of {looks:,} looks at a process gave no stack",
        f"py-spy took {percent(samples.cost)} of a core, and paused nobody",
        f"intervals are binomial, from {FEWEST_IN_SPAN} samples on",
    )
    drawn = (
        "spans that a recording draws from one boundary to another hold their own functions only",
        "target.input_prep is what is in execute_model and in no other span",
    )
    blind = samples.failed > looks * _BLIND
    return (Fact("sampled", known, "yellow" if blind else ""), Fact("spans", drawn))
