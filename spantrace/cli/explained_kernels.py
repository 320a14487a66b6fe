"""What `spantrace explain` says of the GPU: the kernels by span, how busy it was, and the cycle around it all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantrace.tables import Cell, Column, Document, Fact, Headline, Row, Table, number, percent

if TYPE_CHECKING:
    from spantrace.explaining.conducting import Design, Explained
    from spantrace.explaining.kernels import Kernel, KernelWindow
    from spantrace.recording import Recording

TOP = 10
"""Kernels of the span that people are shown; the JSON has all."""
LONGEST_NAME = 44


def kernels_of(design: Design, recording: Recording, explained: Explained) -> Document | str:
    """The kernels by span and those of the span, or why there is none."""
    from spantrace.cli.wording import configuration_line
    from spantrace.explaining.kernels import kernels_in
    from spantrace.explaining.measured import in_window
    from spantrace.spans import Kind

    assert explained.kernels is not None
    if isinstance(explained.kernels, str):
        return explained.kernels
    window, answers = explained.kernels
    chosen = in_window(recording, window)
    found = kernels_in(recording, answers, chosen, design.span)
    if found is None:
        return _no_kernel(recording)
    heading = (configuration_line(recording, frozenset({Kind.STEADY})),) if not design.host else ()
    events = _events_ms(recording, chosen)
    facts = [_busy(found, events), *([] if design.host else [latency(recording, explained)])]
    if found.unlaunched:
        facts.append(Fact("doubt", (f"{found.unlaunched:,} kernels have no launch in the trace",), "yellow"))
    return Document("explain", heading, _gpu_headline(design, found), _kernel_table(design, found), tuple(facts),
                    {"kernels": found, "busy_by_events_ms": events})  # fmt: skip


def latency(recording: Recording, explained: Explained) -> Fact:
    """The cycle before and after all profilers."""
    from spantrace.explaining.measured import cycle_ms

    before, after = (cycle_ms(recording, window) for window in (explained.before, explained.after))
    texts = [f"{number(ms)} ms" if ms is not None else "not known" for ms in (before, after)]
    return Fact("cycle", (f"{texts[0]} before any profiler", f"{texts[1]} after the last one"))


def _no_kernel(recording: Recording) -> str:
    if recording.header.get("gpu"):
        return "torch.profiler saw no kernel; another profiler may hold the GPU's counters, or nothing was launched"
    return "there is no GPU here: torch.profiler sees operators of the CPU only, and no kernel"


def _events_ms(recording: Recording, chosen: object) -> float | None:
    """What event pairs say that the GPU is busy a cycle in the same cycles, at most, in ms."""
    import numpy as np

    from analyzers.co_saturation import gpu_busy

    busy = gpu_busy(recording.only(np.asarray(chosen)))
    return None if busy is None or np.isnan(busy).all() else float(np.nanmean(busy)) / 1e6


def _gpu_headline(design: Design, found: KernelWindow) -> Headline:
    own = next((one for one in found.spans if one.span == design.span), None)
    if own is None:
        return Headline(design.span, ("launches no kernel.",), "bold cyan")
    launched = f"launches {_counted(own.launches)} times a cycle"
    graphs = f", {_counted(own.graphs)} of these CUDA graphs of {_counted(own.nodes)} kernels" if own.graphs else ""
    return Headline(
        design.span,
        (f"{launched}{graphs}. Its {_counted(own.kernels)} kernels keep the GPU busy for {number(own.ns / 1e6)} ms.",),
        "bold cyan",
    )


def _busy(found: KernelWindow, events: float | None) -> Fact:
    busy, period = found.busy / 1e6, found.period / 1e6
    parts = [
        f"{number(busy)} of {number(period)} ms a cycle in kernels, united over streams ({percent(busy / period)})"
    ]
    if events is not None:
        off = f"{abs(events / busy - 1):.1%} too {'high' if events > busy else 'low'}"
        parts.append(f"{number(events)} ms by event pairs in the same cycles: {off}")
    return Fact("GPU busy", (*parts, f"{found.cycles} cycles, slowed by the profiler"))


def _counted(mean: float) -> str:
    return f"{mean:,.1f}"


def _kernel_table(design: Design, found: KernelWindow) -> Table:
    from analyzers.span_table import depth

    columns = (
        Column("name", "launched in"),
        Column("launches", "launches", write=_counted),
        Column("graphs", "graphs", write=_counted, optional=True),
        Column("kernels", "kernels", write=_counted),
        Column("nodes", "in graphs", write=_counted, optional=True),
        Column("ms", "GPU ms", write=number),
        Column("share", "share", write=percent),
        Column("bar", "", bar=True),
    )
    rows = []
    for one in found.spans:
        share = one.ns / found.period
        cells: dict[str, Cell] = {"name": one.span, "launches": one.launches, "graphs": one.graphs}
        cells |= {"kernels": one.kernels, "nodes": one.nodes, "ms": one.ns / 1e6, "share": share, "bar": share}
        rows.append(Row(cells, "  " * depth(one.span) + one.span, "bold" if one.span == design.span else ""))
        if one.span == design.span:
            rows += [_kernel_row(kernel, depth(one.span), found.period) for kernel in found.top[:TOP]]
    return Table(columns, tuple(rows))


def _kernel_row(kernel: Kernel, depth: int, period: float) -> Row:
    name = kernel.name if len(kernel.name) <= LONGEST_NAME else f"{kernel.name[: LONGEST_NAME - 3]}..."
    cells: dict[str, Cell] = {"name": kernel.name, "kernels": kernel.calls, "ms": kernel.ns / 1e6}
    return Row({**cells, "share": kernel.ns / period}, "  " * (depth + 1) + name, "dim", kernel.name)
