"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A number in a range, which "nan" and "inf" are not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error where it is none or out of the range."""
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is no finite number.", param, ctx)


class OutputPath(click.Path):
    """A path to write to, which has a name that can be printed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error where it is empty or holds a line break or the like."""
        path = str(value)
        if not path:
            self.fail("nothing is named; name what to write, or leave it out", param, ctx)
        if not path.isprintable():
            self.fail(f"{path!r} has a character that cannot be printed; choose another name", param, ctx)
        return super().convert(value, param, ctx)


def given(name: str) -> bool:
    """Whether an option, or an argument, was on the command line of the current command."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def refuse_given(names: Iterable[str], why: str) -> None:
    """SpantraceError where one of these was given all the same; `why` goes on after its name."""
    from spantrace.errors import SpantraceError

    context, refused = click.get_current_context(), set(names)
    for one in context.command.params:
        name = str(one.name)
        if name in refused and context.params[name] and given(name):
            said = one.opts[-1] if isinstance(one, click.Option) else context.params[name][0]
            raise SpantraceError(f"{said} {why}")


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the control sockets (default: $SPANTRACE_DIR, or a private one of this user).",
)

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "json", "csv"]),
    default="table",
    show_default=True,
    help="How to print the result.",
)

MOST_CYCLES, MOST_REQUESTS, MOST_TOKENS, MOST_DRAFTS = 10**9, 1 << 16, 1 << 24, 1 << 10
"""Beyond what any run needs; larger numbers are slips, and some do not fit into a file."""

ids_argument = click.argument("ids", nargs=-1, metavar="[IDS]...")

restore_option = click.option(
    "--restore-stock",
    default="none",
    metavar="IDS",
    help="Fixes that this vLLM has by itself and is to be without, as a,b: what they save can then be measured.",
)

device_option = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Where to run (default: a GPU if PyTorch finds one)."
)

dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Type of weights and activations (default: bfloat16 on a GPU, float32 on a CPU).",
)
