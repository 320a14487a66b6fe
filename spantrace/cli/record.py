"""`spantrace record`: profile a live server into a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spantrace.cli import live_exports, making
from spantrace.cli.making import force_option, output_option
from spantrace.cli.options import MOST_CYCLES, FiniteRange, directory_option

if TYPE_CHECKING:
    from spantrace.capture import Capture, Until
    from spantrace.journal import Journal
    from spantrace.live_export import LiveExport
    from spantrace.vllm_adapter.servers import Server

SAMPLE_S = 10.0
"""How long a server is sampled unless --seconds says."""


@click.command("record")
@click.argument("server")
@click.option(
    "--cycles",
    type=click.IntRange(1, MOST_CYCLES),
    help="Stop after so many decode cycles past the warm-up (default: 1000).",
)
@click.option("--seconds", type=FiniteRange(0, min_open=True), help="Stop after this many seconds.")
@click.option(
    "--warmup",
    type=click.IntRange(0, MOST_CYCLES),
    default=20,
    show_default=True,
    help="Steady cycles to leave out first.",
)
@click.option("--nvtx", is_flag=True, help="Also push each recorded span as an NVTX range of the domain spantrace.")
@click.option("--gpu/--no-gpu", default=True, help="Time GPU spans with events (default) or the host alone.")
@click.option("--detail-every", type=click.IntRange(1, MOST_CYCLES), metavar="N",
              help="Record spans in runs of 8 cycles, one run in N, and count and time the others only "
                   "(default: 5, fewer below 500 --cycles, 1 with --nvtx).")  # fmt: skip
@click.option("--idle-timeout", type=FiniteRange(0, min_open=True), default=10.0, show_default=True, metavar="S",
              help="Give up after this long without a cycle.")  # fmt: skip
@click.option("--sample", is_flag=True,
              help="Without the plugin in the server: let py-spy look at its stacks for --seconds "
                   f"(default: {SAMPLE_S:g}), for shares of the host time, no times, no verdict.")  # fmt: skip
@click.option("--attach", is_flag=True,
              help="Put the plugin into a server that was started without it; Python 3.14 here and there.")  # fmt: skip
@live_exports.otlp_option
@live_exports.prometheus_option
@output_option
@force_option
@directory_option
@click.pass_context
def command(
    context: click.Context,
    server: str,
    cycles: int | None,
    seconds: float | None,
    warmup: int,
    nvtx: bool,
    gpu: bool,
    detail_every: int | None,
    idle_timeout: float,
    sample: bool,
    attach: bool,
    otlp: str | None,
    prometheus: str | None,
    output: Path | None,
    force: bool,
    directory: Path | None,
) -> None:
    """Record the decode cycles of a running vLLM SERVER (:PORT, URL or pid) without restarting it."""
    from spantrace.capture import Capture, Until
    from spantrace.cli.sampled import record_sampled
    from spantrace.cli.together import record_each
    from spantrace.control import default_directory
    from spantrace.journal import Journal
    from spantrace.sampling import every_for
    from spantrace.vllm_adapter.servers import roles
    from spantrace.vllm_adapter.targets import pid_of, without_secrets

    if seconds != seconds:
        raise click.BadParameter("nan is no number of seconds")
    if output:
        making.refuse_output(output, force=force)
    if sample:
        _refuse_what_needs_hooks(context)
        record_sampled(server, seconds or SAMPLE_S, output, directory, force=force)
        return
    place = directory or default_directory()
    found = _found(server, place, attach=attach)
    path = output or making.default_output(found.short_name())
    engines = found.engines()
    if len(engines) > 1 and server not in map(str, engines.values()):
        record_each(context, engines, path, force=force)
        return
    members = roles(found, pid_of(server))
    wanted = None if seconds and not cycles else (cycles or 1000) + warmup
    until = Until(wanted, seconds, idle_timeout)
    every = detail_every or (1 if nvtx else every_for(wanted and wanted - warmup))
    options = {"warmup": warmup, "nvtx": nvtx, "cycles": cycles, "seconds": seconds, "detail_every": every}
    header = making.new_header(without_secrets(found.command), options)
    with (
        live_exports.exporting(header, otlp, prometheus) as live,
        Journal(path, header, force=force, follower=live.take if live else None) as journal,
    ):
        capture = Capture(place, members, journal, {"nvtx": nvtx, "gpu": gpu, "detail_every": every})
        _run(capture, until, journal, live)


def _found(target: str, directory: Path, *, attach: bool) -> Server:
    """The server that `target` names, once its deaf processes have the plugin where that is asked for."""
    from spantrace.vllm_adapter import attaching
    from spantrace.vllm_adapter.servers import find

    found = find(target, directory)
    if attach:
        attaching.attach(found, directory)
        found = find(target, directory)
    return found


def _refuse_what_needs_hooks(context: click.Context) -> None:
    """A usage error where an option was given that means nothing to what is only sampled."""
    needs = ("cycles", "warmup", "nvtx", "gpu", "detail_every", "idle_timeout", "attach", "otlp", "prometheus")
    given = [name for name in needs if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        named = ", ".join("--" + name.replace("_", "-") for name in given)
        raise click.UsageError(f"--sample counts and times no cycles; leave out {named}")


def _run(capture: Capture, until: Until, journal: Journal, live: LiveExport | None) -> None:
    from spantrace.errors import SpantraceError
    from spantrace.interrupts import signals_held

    with making.kept(journal, lambda: capture.steps):
        _capture(capture, until)
        with signals_held():
            recording = journal.finish()
            if not len(recording.cycles):
                journal.path.unlink()
                raise SpantraceError("no whole cycle was recorded; record for longer while the server has load", 3)
            if capture.note:
                kept = "partial" if recording.partial else "kept"
                click.echo(f"spantrace: {capture.note}; the recording is {kept}", err=True)
            making.say_written(recording, journal.path)
        if live:
            live_exports.say_exported(live, recording)


def _capture(capture: Capture, until: Until) -> None:
    """Record until the end or until it is interrupted, which passes on where nothing was recorded."""
    interrupted = False
    with capture, making.progress_bar(until.cycles) as progress:
        try:
            capture.run(until, progress)
        except KeyboardInterrupt:
            interrupted = True
        if not capture.stop():
            capture.note = capture.note or "a process did not finish its recording"
    if not capture.steps:
        raise KeyboardInterrupt if interrupted else capture.nothing("no cycle was recorded: the server was idle")
    if interrupted:
        click.echo("stopped; what was recorded is kept", err=True)
