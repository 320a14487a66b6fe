"""`spantrace record`: profile a live server into a file."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli.options import directory_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from spantrace.capture import Capture, Until
    from spantrace.journal import Journal


@click.command("record")
@click.argument("server")
@click.option(
    "--cycles", type=click.IntRange(1), help="Stop after so many decode cycles past the warm-up (default: 1000)."
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after this many seconds.")
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="Steady cycles to leave out first: Python runs hooked classes slower for some 90 cycles after a change.",
)
@click.option("--nvtx", is_flag=True, help="Also push each span as an NVTX range of the domain spantrace.")
@click.option("--gpu/--no-gpu", default=True, help="Time GPU spans with events (default) or the host alone.")
@click.option("--idle-timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, metavar="S",
              help="Give up after this long without a cycle.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write (*.spantrace).")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@directory_option
def command(
    server: str,
    cycles: int | None,
    seconds: float | None,
    warmup: int,
    nvtx: bool,
    gpu: bool,
    idle_timeout: float,
    output: Path | None,
    force: bool,
    directory: Path | None,
) -> None:
    """Record the decode cycles of a running vLLM SERVER (:PORT, URL or pid) without restarting it."""
    from spantrace.capture import Capture, Until
    from spantrace.control import default_directory
    from spantrace.errors import SpantraceError
    from spantrace.journal import Journal, journal_path
    from spantrace.vllm_adapter.servers import engine_and_workers, find

    if seconds != seconds:
        raise click.BadParameter("nan is no number of seconds")
    if output and not force and (there := next((p for p in (output, journal_path(output)) if p.exists()), None)):
        raise SpantraceError(f"{there} exists; choose another name or add --force")
    place = directory or default_directory()
    found = find(server, place)
    workers, engine = engine_and_workers(found, int(server) if server.isdecimal() else None)
    path = output or Path(f"{_stem(found.model())}-{time.strftime('%Y%m%d-%H%M%S')}.spantrace")
    wanted = None if seconds and not cycles else (cycles or 1000) + warmup
    until = Until(wanted, seconds, idle_timeout)
    header = _header(found.command, {"warmup": warmup, "nvtx": nvtx, "cycles": cycles, "seconds": seconds})
    with Journal(path, header) as journal:
        members = {**{worker.pid: "worker" for worker in workers}, engine.pid: "engine"}
        capture = Capture(place, members, journal, {"nvtx": nvtx, "gpu": gpu})
        _run(capture, until, journal)


def _run(capture: Capture, until: Until, journal: Journal) -> None:
    from spantrace.errors import SpantraceError

    try:
        with capture, _progress(until.cycles) as progress:
            try:
                capture.run(until, progress)
            except KeyboardInterrupt:
                click.echo("stopping; what was recorded is kept", err=True)
            if not capture.stop():
                capture.note = capture.note or "a process did not finish its recording"
    except SpantraceError:
        if not capture.steps:
            journal.discard()
        raise
    if not capture.steps:
        journal.discard()
        raise capture.nothing("no cycle was recorded: the server was idle")
    recording = journal.finish()
    if not len(recording.cycles):
        journal.path.unlink()
        raise SpantraceError("no whole cycle was recorded; record for longer while the server has load", 3)
    if capture.note:
        click.echo(
            f"spantrace: {capture.note}; the recording is {'partial' if recording.partial else 'kept'}", err=True
        )
    click.echo(
        f"{len(recording.cycles):,} cycles -> {journal.path} ({journal.path.stat().st_size / 1e6:.2f} MB)", err=True
    )


def _header(started_as: str, options: dict[str, Any]) -> dict[str, Any]:
    import os
    import platform

    from spantrace import __version__
    from spantrace.vllm_adapter.gpu_state import gpu_states
    from spantrace.vllm_adapter.targets import without_secrets

    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "spantrace": __version__,
        "monotonic_to_realtime_ns": time.time_ns() - time.perf_counter_ns(),
        "host": {
            "name": platform.node(),
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "gpu": None,
        "gpus": gpu_states(),
        "server": {"args": without_secrets(started_as)},
        "optimizations": [],
        "options": options,
        "notes": [],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _stem(model: str) -> str:
    name = Path(model).name if model != "-" else "vllm"
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name)


def _progress(total: int | None) -> AbstractContextManager[Callable[[int], None]]:
    if not sys.stderr.isatty():
        return nullcontext(lambda cycles: None)
    return _Bar(total)


class _Bar:
    """A progress bar on stderr of decode cycles so far."""

    def __init__(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("recording"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cycles"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("recording", total=total)

    def __enter__(self) -> Callable[[int], None]:
        self._progress.start()
        return lambda cycles: self._progress.update(self._task, completed=cycles)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
