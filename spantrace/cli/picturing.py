"""`spantrace report --html`: the report as a page, with the median cycle as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spantrace.files import written_whole

if TYPE_CHECKING:
    from spantrace.recording import Recording
    from spantrace.spans import Kind
    from spantrace.tables import Document


def write_page(path: Path, document: Document, recording: Recording, kinds: frozenset[Kind], name: str) -> None:
    """Write the page of a recording's report; SpantraceError, and nothing of it is left, where that cannot be."""
    from analyzers.median_cycle import median_cycle
    from spantrace.cli.timeline import swatch, timeline
    from spantrace.page import page

    found = median_cycle(recording, kinds)
    text = page(document, f"{name}: spantrace report", None if found is None else timeline(found), swatch)
    with written_whole(path) as file:
        file.write(text.encode())
    click.echo(f"page -> {path} ({len(text) / 1e3:.0f} kB)", err=True)
