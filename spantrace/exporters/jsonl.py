"""Writes a recording as JSON lines: one object a span."""

from __future__ import annotations

import json
from pathlib import Path

from spantrace.exporters.rows import pieces
from spantrace.files import written_whole
from spantrace.recording import Recording

SUFFIX = ".jsonl"


def write(recording: Recording, path: Path) -> None:
    """Write the rows; SpantraceError where the file cannot be written, and then there is none."""
    with written_whole(path) as file:
        for piece in pieces(recording):
            rows = (dict(zip(piece, row, strict=True)) for row in zip(*piece.values(), strict=True))
            file.write("".join(f"{json.dumps(row)}\n" for row in rows).encode())
