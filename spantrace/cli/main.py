"""`spantrace`: turns errors and Ctrl-C into one line and an exit code, from the first moment on."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    import click

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main() -> None:
    """Run the command line and exit: 0 fine, 1 a gate failed, 2 bad input, 3 not comparable, 130 interrupted."""
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        from spantrace.cli.streams import prepare

        prepare()
        code = run()
    except KeyboardInterrupt:
        code = _fail(_stopped(sys.argv[1:]), EXIT_INTERRUPTED)
    if listens:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; nothing but a bug in spantrace prints a traceback."""
    import click

    from spantrace.cli.group import cli
    from spantrace.errors import EXIT_BAD_INPUT, SpantraceError

    given = sys.argv[1:] if arguments is None else arguments
    try:
        with cli.make_context("spantrace", list(given)) as context:
            cli.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except SpantraceError as error:
        return _fail(str(error), error.exit_code)
    except click.UsageError as error:
        return _misused(error)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        return _fail(str(error) or _stopped(given), EXIT_INTERRUPTED)
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_BAD_INPUT)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt; within an import, which may lose it or make another error of it, the end at once."""
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            try:
                _fail(_stopped(sys.argv[1:]), EXIT_INTERRUPTED)
            finally:
                os._exit(EXIT_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _stopped(arguments: Sequence[str]) -> str:
    """What Ctrl-C means where nobody else says it."""
    return "stopped; nothing was recorded" if arguments and arguments[0] in ("record", "run") else "stopped"


def _misused(error: click.UsageError) -> int:
    """The help where nothing at all was asked, else what is wrong and where the help is."""
    command = error.ctx.command_path if error.ctx else "spantrace"
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return error.exit_code
    return _fail(f"{error.format_message().rstrip('.')}; see {command} --help", error.exit_code)


def _fail(message: str, code: int) -> int:
    from spantrace.legible import legible

    print("spantrace: " + "\n".join(map(legible, message.split("\n"))), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    main()
