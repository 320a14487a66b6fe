"""`spantrace`: finds a command's file by its name, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from spantrace.errors import EXIT_BAD_INPUT, SpantraceError
from spantrace.packages import refuse_stranger

COMMANDS = {
    "ps": "List the live vLLM servers on this machine.",
    "record": "Record the decode cycles of a live server.",
    "top": "Watch a live server: cycle, verdict, spans, tokens.",
    "explain": "See inside one span: Python stacks and GPU kernels.",
    "report": "Say who bounds the cycle and what each span of it costs.",
    "compare": "Set two recordings side by side.",
    "export": "Write a recording for another tool.",
    "run": "Record the built-in cycle: no server, no GPU needed.",
    "ab": "Measure arms in turns: what did each optimization save?",
    "serve": "Start `vllm serve` ready to be recorded.",
    "toggle": "Switch optimizations of a live server.",
    "sensitivity": "Delay spans to see which the cycle waits for.",
    "optimizations": "Say which optimizations apply, are on or are refused.",
    "probe": "Compare a live server's tokens with and without them.",
    "verify": "Judge optimizations against their references.",
    "bench": "Time optimizations against the code they replace.",
    "doctor": "Say what this machine can measure.",
}
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class LazyGroup(click.Group):
    """Imports a command's module when it is run, not when the commands are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which one meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of `spantrace/cli/<name>.py`."""
        if cmd_name not in COMMANDS:
            return None
        for package in ("analyzers", "optimized"):
            refuse_stranger(package)
        command: click.Command = import_module(f"spantrace.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from `COMMANDS`, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spantrace", message="%(prog)s %(version)s")
def cli() -> None:
    """Profile and optimize the speculative-decode cycle: of a live vLLM server, or of the built-in one."""


def main() -> None:
    """Run the command line and exit: 0 fine, 1 a gate failed, 2 bad input, 3 not comparable, 130 interrupted."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; nothing but a bug in spantrace prints a traceback."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
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
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_BAD_INPUT)


def _misused(error: click.UsageError) -> int:
    """The help where nothing at all was asked, else what is wrong and where the help is."""
    command = error.ctx.command_path if error.ctx else "spantrace"
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return error.exit_code
    return _fail(f"{error.format_message().rstrip('.')}; see {command} --help", error.exit_code)


def _fail(message: str, code: int) -> int:
    from spantrace.legible import legible

    click.echo("spantrace: " + "\n".join(map(legible, message.split("\n"))), err=True)
    return code


if __name__ == "__main__":
    main()
