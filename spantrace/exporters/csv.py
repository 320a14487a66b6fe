"""Writes a recording as comma-separated values: a line of names, then one row a span; nothing is an empty field."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spantrace.exporters.rows import NAMES, pieces
from spantrace.files import written_whole
from spantrace.recording import Recording

SUFFIX = ".csv"


def write(recording: Recording, path: Path) -> None:
    """Write the rows; SpantraceError where the file cannot be written, and then there is none."""
    with written_whole(path) as file:
        file.write(_lines([NAMES]))
        for piece in pieces(recording):
            file.write(_lines(zip(*piece.values(), strict=True)))


def _lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
