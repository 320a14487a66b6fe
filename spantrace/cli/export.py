"""`spantrace export`: a recording in the form of another tool."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli.options import OutputPath

if TYPE_CHECKING:
    from spantrace.recording import Recording

FORMS = {
    "perfetto": "Perfetto's own form, .pftrace",
    "kineto": "a trace like torch.profiler's, for Perfetto and HTA",
    "parquet": "a table of one row a span",
    "csv": "the same rows",
    "jsonl": "the same rows, an object a line",
}
"""Each is written by the module of that name in `spantrace.exporters`."""


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(list(FORMS)), required=True,
              help="; ".join(f"{form}: {what}" for form, what in FORMS.items()) + ".")  # fmt: skip
@click.option("-o", "--output", type=OutputPath(path_type=Path), help="File to write (default: FILE's name, here).")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
def command(file: Path, form: str, output: Path | None, force: bool) -> None:
    """Write the recording FILE for another tool to open; command lines, addresses and paths stay out of it."""
    from spantrace.cli.making import refuse_output
    from spantrace.errors import SpantraceError
    from spantrace.exporters import kineto
    from spantrace.loading import load
    from spantrace.sampled import samples_of

    exporter = _exporter(form)
    path = output or Path(file.name.removesuffix(".spantrace").removesuffix(kineto.SUFFIX) + exporter.SUFFIX)
    refuse_output(path, force=force, inputs=[file])
    recording: Recording = load(file)
    if samples_of(recording.header) is not None:
        raise SpantraceError(f"{file} is sampled, it holds no spans to export; record the server to export it")
    exporter.write(recording, path)
    click.echo(f"{path}: {len(recording.cycles):,} cycles, {len(recording.spans.name):,} spans", err=True)


def _exporter(form: str) -> Any:
    """The exporter's module; SpantraceError where the package that it writes with is not installed."""
    from spantrace.packages import extra

    with extra(form, f"--to {form}"):
        return import_module(f"spantrace.exporters.{form}")
