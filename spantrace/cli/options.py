"""Options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A number in a range, which "nan" and "inf" are not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error where it is none or out of the range."""
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is no finite number.", param, ctx)


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
