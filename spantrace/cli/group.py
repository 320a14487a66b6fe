"""The commands of `spantrace`, each found by its name in the file of that name."""

from __future__ import annotations

from importlib import import_module

import click

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
