"""`spantrace record` of a server with several engines: one command and one file for each, at the same time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TextIO

import click

from spantrace.cli.making import refuse_output
from spantrace.errors import EXIT_NOT_COMPARABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUN = "from spantrace.cli.main import main; main()"
_OWN = frozenset({"server", "output"})
"""What each engine's command gets instead of what was given for all."""


def record_each(context: click.Context, engines: Mapping[str, int], path: Path, *, force: bool) -> None:
    """Record every engine, by name its pid, as this command was asked to, into PATH-NAME; Ctrl-C ends all of them.

    The exit code is that of the first that failed, but an idle engine is no failure where another one was recorded.
    """
    paths = {name: path.with_name(f"{path.stem}-{name}{path.suffix}") for name in engines}
    for one in paths.values():
        refuse_output(one, force=force)
    given = _given(context)
    click.echo(f"recording {len(engines)} engines (data parallel): {', '.join(engines)}", err=True)
    with _interrupted_together() as running:
        for name, pid in engines.items():
            words = [sys.executable, "-c", _RUN, "record", str(pid), "-o", str(paths[name]), *given]
            running.append(
                subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
                )
            )
        told = [Thread(target=_relay, args=(name, one.stderr)) for name, one in zip(engines, running, strict=True)]
        for thread in told:
            thread.start()
    codes = [one.wait() for one in running]
    for thread in told:
        thread.join()
    failed = [code for code in codes if code not in (0, EXIT_NOT_COMPARABLE if 0 in codes else 0)]
    if failed:
        raise click.exceptions.Exit(failed[0])


def _given(context: click.Context) -> list[str]:
    """The options of the command line as words, less those that each engine has its own of."""
    words: list[str] = []
    for option in context.command.params:
        name = str(option.name)
        if name in _OWN or context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        if isinstance(option, click.Option) and option.is_flag:
            words.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            words += [option.opts[0], str(value)]
    return words


@contextmanager
def _interrupted_together() -> Iterator[list[subprocess.Popen[str]]]:
    """Wait for the processes that the block starts; Ctrl-C and SIGTERM are passed on to them, and they end by it."""
    from spantrace.interrupts import ended_by_signals

    running: list[subprocess.Popen[str]] = []
    try:
        with ended_by_signals():
            yield running
            for one in running:
                one.wait()
    except KeyboardInterrupt:
        for one in running:
            one.send_signal(signal.SIGINT)


def _relay(name: str, said: TextIO | None) -> None:
    """Say on stderr what a process says, with its engine's name."""
    for line in said or ():
        click.echo(f"{name}: {line.rstrip()}", err=True)
