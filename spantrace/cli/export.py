"""`spantrace export`: a recording in the form of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spantrace.recording import Recording


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(["kineto"]), required=True,
              help="kineto: a trace like torch.profiler's, for Perfetto and HTA.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write (default: FILE's name, here).")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
def command(file: Path, form: str, output: Path | None, force: bool) -> None:
    """Write the recording FILE for another tool to open; command lines, addresses and paths stay out of it."""
    from spantrace.cli.making import refuse_overwriting
    from spantrace.exporters import kineto
    from spantrace.loading import load

    path = output or Path(file.name.removesuffix(".spantrace").removesuffix(kineto.SUFFIX) + kineto.SUFFIX)
    refuse_overwriting(path, force=force, inputs=[file])
    recording: Recording = load(file)
    kineto.write(recording, path)
    click.echo(f"{path}: {len(recording.cycles):,} cycles, {len(recording.spans.name):,} spans", err=True)
