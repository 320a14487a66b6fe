"""`spantrace explain`: the Python stacks and the GPU kernels inside one span."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli import making
from spantrace.cli.cycle_options import BUILT_IN, cycle_options
from spantrace.cli.making import force_option
from spantrace.cli.options import MOST_CYCLES, FiniteRange, OutputPath, directory_option, format_option

if TYPE_CHECKING:
    from spantrace.explaining.conducting import Design, Explained
    from spantrace.recording import Recording

MOST_SAMPLES, MOST_TRACED = 1_000_000, 1000


@click.command("explain")
@click.argument("target", metavar="SERVER | built-in")
@click.option("--span", "span", required=True, metavar="NAME", help="The span to look into; `cycle` is all of it.")
@click.option("--only", type=click.Choice(["host", "gpu"]), help="Look at one side (default: both).")
@click.option("--samples", type=click.IntRange(1, MOST_SAMPLES), default=500, show_default=True,
              help="Samples of the host's stacks that are enough.")  # fmt: skip
@click.option("--seconds", type=FiniteRange(0, min_open=True), default=30.0, show_default=True,
              help="Sample the host no longer than this.")  # fmt: skip
@click.option("--cycles", type=click.IntRange(1, min(MOST_CYCLES, MOST_TRACED)), default=8, show_default=True,
              help="Decode cycles whose kernels are traced.")  # fmt: skip
@cycle_options
@click.option("-o", "--output", type=OutputPath(dir_okay=False, path_type=Path), metavar="FILE",
              help="Also save the stacks: FILE.speedscope.json or FILE.html.")  # fmt: skip
@force_option
@directory_option
@format_option
def command(target: str, output: Path | None, force: bool, directory: Path | None, form: str, **options: Any) -> None:
    """Say what runs inside one span: its Python stacks (pyinstrument) and its GPU kernels (torch.profiler).

    A SERVER (:PORT, URL or pid) must be under load; `built-in` is the cycle of `spantrace run`, with its options. Each
    profiler is at work in windows of its own, for some seconds, and is gone afterwards.
    """
    from spantrace.cli.explained import show
    from spantrace.errors import SpantraceError
    from spantrace.explaining.conducting import Design
    from spantrace.interrupts import ended_by_signals
    from spantrace.tables import Format

    same = {name: options[name] for name in ("span", "samples", "seconds", "cycles")}
    design = Design(host=options["only"] != "gpu", gpu=options["only"] != "host", **same)
    if output:
        if not output.name.endswith((".speedscope.json", ".html")):
            raise SpantraceError(f"{output} is neither .speedscope.json nor .html; choose one of these endings")
        if not design.host:
            raise SpantraceError("the stacks of the host are what is saved; leave --only gpu or -o out")
        making.refuse_output(output, force=force)
    with ended_by_signals():
        recording, explained = _built_in(design, options) if target == BUILT_IN else _server(target, design, directory)
    show(design, recording, explained, output, Format(form))


def _server(target: str, design: Design, directory: Path | None) -> tuple[Recording, Explained]:
    from tempfile import TemporaryDirectory

    from spantrace.capture import Capture
    from spantrace.control import default_directory
    from spantrace.errors import SpantraceError
    from spantrace.explaining.conducting import conduct
    from spantrace.journal import Journal
    from spantrace.loading import load
    from spantrace.vllm_adapter.explained import OPTIONS, ExplainedServer
    from spantrace.vllm_adapter.servers import find, roles
    from spantrace.vllm_adapter.targets import pid_of, without_secrets

    place = directory or default_directory()
    found = find(target, place)
    members = roles(found, pid_of(target))
    header = making.new_header(without_secrets(found.command), {"warmup": 0})
    with (
        TemporaryDirectory(prefix="spantrace-") as folder,
        Journal(Path(folder) / "explained", header, kept=False) as journal,
        Capture(place, members, journal, OPTIONS) as capture,
        making.progress_bar(design.samples, "sampling", "samples") as progress,
    ):
        server = ExplainedServer(capture, journal)
        explained = conduct(design, server, progress)
        if not capture.stop():
            raise SpantraceError(capture.note or "a process did not finish its recording")
        return server.of_one_rank(load(journal.part)), explained


def _built_in(design: Design, options: dict[str, Any]) -> tuple[Recording, Explained]:
    from tempfile import TemporaryDirectory

    from spantrace.cli.cycle_options import rates_of, require_torch, settings_of
    from spantrace.journal import Journal

    require_torch()
    from spantrace.built_in.explained import explain
    from spantrace.built_in.running import ENGINE, Asked, BuiltIn, within_memory

    asked = Asked(settings_of(options), rates_of(options["accept"]))
    header = making.new_header(BUILT_IN, {"warmup": 0})
    header["server"]["engine"] = ENGINE
    with (
        TemporaryDirectory(prefix="spantrace-") as folder,
        Journal(Path(folder) / "explained", header, kept=False) as journal,
        within_memory(asked.settings),
    ):
        work = BuiltIn(asked)
        work.prepare(lambda tokens: None)
        with making.progress_bar(design.samples, "sampling", "samples") as progress:
            return explain(work, design, journal, progress)
