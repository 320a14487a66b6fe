"""What the commands that make a recording share: its file, its header, the progress bar and the last line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli.options import OutputPath

if TYPE_CHECKING:
    from spantrace.journal import Journal
    from spantrace.recording import Recording

Progress = Callable[[int], None]

output_option = click.option(
    "-o",
    "--output",
    type=OutputPath(path_type=Path, dir_okay=False),
    help="File to write (default: NAME-DATE-TIME.spantrace here, NAME being what is recorded).",
)
force_option = click.option("--force", is_flag=True, help="Overwrite the output file.")


def refuse_output(output: Path, *, force: bool = False, inputs: Sequence[Path] = ()) -> None:
    """SpantraceError where there cannot be such a file, or it or its journal is there already.

    `force` allows what is there, unless it is no file or one of the inputs.
    """
    from spantrace.errors import SpantraceError
    from spantrace.journal import journal_path, taken

    if str(output) == "-":
        raise SpantraceError("- would be stdout, to which no file is written; name a file")
    if not output.parent.is_dir():
        raise SpantraceError(f"cannot write {output}: there is no folder {output.parent}; make it")
    if output.exists() and any(one.exists() and one.samefile(output) for one in inputs):
        raise SpantraceError(f"{output} is the recording itself; choose another name")
    there = [path for path in (output, *([journal_path(output)] if output.name else ())) if path.exists()]
    if special := next((path for path in there if not path.is_file()), None):
        raise SpantraceError(f"{special} is no file that could be overwritten; choose another name")
    if there and not force:
        raise taken(there[0])


def default_output(name: str) -> Path:
    """A file in this directory, called after what is recorded and the time."""
    stem = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name)
    return Path(f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.spantrace")


def new_header(started_as: str, options: dict[str, Any]) -> dict[str, Any]:
    """The header of a recording that begins now: this machine, and how it was started."""
    import os
    import platform

    from spantrace import __version__
    from spantrace.vllm_adapter.gpu_state import gpu_states

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
        "server": {"args": started_as},
        "optimizations": [],
        "options": options,
        "notes": [],
    }


@contextmanager
def kept(journal: Journal, steps: Callable[[], int]) -> Iterator[None]:
    """Record within this: SIGTERM ends it as Ctrl-C does, and a journal that is not finished goes or is told of.

    It goes where `steps` says that nothing was recorded yet.
    """
    from spantrace.interrupts import ended_by_signals

    try:
        with ended_by_signals():
            yield
    except BaseException as error:
        if not steps():
            journal.discard()
        left = f"{journal.part} holds what was recorded" if journal.part.exists() else ""
        if isinstance(error, KeyboardInterrupt):
            kept = "what was recorded is kept" if steps() else "nothing was recorded"
            raise KeyboardInterrupt(f"stopped; {left or kept}") from None
        if left and str(journal.part) not in str(error):
            click.echo(left, err=True)
        raise


def say_written(recording: Recording, path: Path) -> None:
    """The last line: how many cycles went where."""
    size = path.stat().st_size / 1e6
    click.echo(f"{len(recording.cycles):,} cycles -> {path} ({size:.2f} MB)", err=True)


def progress_bar(total: int | None, doing: str = "recording", unit: str = "cycles") -> AbstractContextManager[Progress]:
    """A bar on a terminal's stderr, moved by the number that is done; nothing elsewhere."""
    return _Bar(total, doing, unit) if sys.stderr.isatty() else nullcontext(lambda done: None)


class _Bar:
    def __init__(self, total: int | None, doing: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(doing, total=total)

    def __enter__(self) -> Progress:
        self._progress.start()
        return lambda done: self._progress.update(self._task, completed=done)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
