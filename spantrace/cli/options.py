"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

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
