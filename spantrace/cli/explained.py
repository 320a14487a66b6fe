"""What `spantrace explain` prints and saves: the tree of a span's stacks, and its kernels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spantrace.tables import Cell, Column, Document, Fact, Format, Headline, Row, Table, number, percent

if TYPE_CHECKING:
    from pyinstrument.session import Session

    from spantrace.explaining.conducting import Design, Explained
    from spantrace.explaining.tree import Node
    from spantrace.explaining.within import SpanStacks
    from spantrace.recording import Recording


def show(design: Design, recording: Recording, explained: Explained, output: Path | None, form: Format) -> None:
    """Save the stacks and print all; SpantraceError, after that, where the samples are too few."""
    from spantrace.cli.explained_kernels import kernels_of
    from spantrace.cli.wording import warn
    from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
    from spantrace.terminal import emit

    stacks, kernels = explained.stacks, explained.kernels and kernels_of(design, recording, explained)
    documents = [_host(design, recording, explained, stacks, output)] if stacks else []
    if isinstance(kernels, Document):
        documents.append(kernels)
    elif kernels and not documents:
        raise SpantraceError(kernels, EXIT_NOT_COMPARABLE)
    elif kernels:
        more = (Fact("kernels", (kernels,)),)
        documents[0] = replace(
            documents[0], facts=documents[0].facts + more, data={**documents[0].data, "kernels": None}
        )
    for printed in _together(documents, form):
        warn(printed, form)
        emit(printed, form)
        if form is not Format.JSON and printed is not documents[-1]:
            print(flush=True)
    if (found := explained.stacks) and len(found.records) < design.samples:
        raise SpantraceError(_not_enough(design, found), EXIT_NOT_COMPARABLE)


def _together(documents: list[Document], form: Format) -> list[Document]:
    """One document of all data for JSON, and the first one's table for CSV."""
    if form is Format.JSON:
        data = {key: value for one in documents for key, value in one.data.items()}
        return [Document("explain", (), None, Table((), ()), tuple(f for one in documents for f in one.facts), data)]
    return documents[:1] if form is Format.CSV else documents


def _not_enough(design: Design, found: SpanStacks) -> str:
    return (
        f"not enough: {len(found.records)} of {design.samples} samples in {design.span} within {design.seconds:g} s; "
        "sample for longer with --seconds, or put more load on it"
    )


def _host(
    design: Design, recording: Recording, explained: Explained, found: SpanStacks, output: Path | None
) -> Document:
    from spantrace.cli.wording import configuration_line
    from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
    from spantrace.explaining.measured import cycle_ms, span_ms
    from spantrace.explaining.tree import nodes_of, session_of
    from spantrace.spans import Kind

    if not found.records:
        raise SpantraceError(_not_enough(design, found), EXIT_NOT_COMPARABLE)
    begun = (explained.before[1] + int(recording.header["monotonic_to_realtime_ns"])) / 1e9
    session = session_of(found, design.span, begun)
    if output:
        _save(session, output)
    nodes = nodes_of(session)
    alone = span_ms(recording, explained.before, design.span)
    columns = (
        Column("function", "function"),
        Column("share", "share", write=percent),
        Column("bar", "", bar=True),
        Column("ms", "in all", "ms sampled", write=number),
        Column("own_ms", "itself", "ms sampled", write=number, optional=True),
        Column("where", "where most", only="text"),
        Column("file", "file", only="data"),
        Column("line", "line", only="data", write=lambda line: f"{line:.0f}"),
    )
    rows = tuple(_row(node, found.cycles, nodes[0].seconds) for node in nodes)
    data = {
        "span": design.span,
        "samples": len(found.records),
        "sampled_cycles": found.cycles,
        "covered": found.covered,
        "span_ms": alone,
        "cycle_ms": {"before": cycle_ms(recording, explained.before), "after": cycle_ms(recording, explained.after)},
        "left": found.left,
        "stacks": nodes,
    }
    heading = (configuration_line(recording, frozenset({Kind.STEADY})),)
    return Document("explain", heading, _headline(design, found, nodes, alone), Table(columns, rows),
                    (*_host_facts(recording, explained, found, alone, output),), data)  # fmt: skip


def _save(session: Session, output: Path) -> None:
    from pyinstrument.renderers import HTMLRenderer, SpeedscopeRenderer

    from spantrace.files import written_whole

    renderer = HTMLRenderer() if output.suffix == ".html" else SpeedscopeRenderer(show_all=True)
    text = renderer.render(session)
    with written_whole(output) as file:
        file.write(text.encode())


def _row(node: Node, cycles: int, whole: float) -> Row:
    share = node.seconds / whole
    where = f"{node.file}:{node.line}" if node.line else node.file.strip("<>")
    cells: dict[str, Cell] = {"function": node.function, "ms": node.seconds * 1e3 / cycles, "share": share}
    cells |= {"bar": share, "own_ms": node.own * 1e3 / cycles, "where": where, "file": node.file, "line": node.line}
    return Row(cells, " " * node.depth + node.function, "bold" if node.own == whole else "", node.function)


def _headline(design: Design, found: SpanStacks, nodes: tuple[Node, ...], alone: float | None) -> Headline:
    """The span's time, and the function that spends most of it itself."""
    own: dict[tuple[str, str], float] = defaultdict(float)
    for node in nodes:
        own[node.function, node.file] += node.own
    (name, file), spent = max(own.items(), key=lambda one: one[1])
    hottest = max((node for node in nodes if (node.function, node.file) == (name, file)), key=lambda node: node.own)
    share = spent / nodes[0].seconds
    where = f" ({hottest.file}:{hottest.line})" if hottest.line else ""
    takes = f"takes {number(alone)} ms of a cycle on the host." if alone is not None else "runs on the host."
    most = f"{percent(share)} of it is {hottest.function}{where} itself."
    return Headline(design.span, (f"{takes} {most}",), "bold cyan")


def _host_facts(
    recording: Recording, explained: Explained, found: SpanStacks, alone: float | None, output: Path | None
) -> list[Fact]:
    from spantrace.cli.explained_kernels import latency

    sampled = found.ns / 1e6 / found.cycles
    parts = [f"{len(found.records):,} in {found.cycles:,} cycles, one in 0.1 ms at most"]
    parts += [f"they stand for {percent(found.covered)} of its time"]
    parts += [f"which took {number(sampled)} ms while it was sampled"] if alone is not None else []
    facts = [Fact("samples", tuple(parts)), latency(recording, explained)]
    if not found.left:
        facts.append(Fact("doubt", ("a sleeping thread keeps its profiler until it runs Python again",), "yellow"))
    return [*facts, *([Fact("saved", (str(output),))] if output else [])]
