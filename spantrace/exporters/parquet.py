"""Writes a recording as a parquet table of one row a span, with what may be told of its header in the schema.

The key `spantrace` of the schema's metadata holds the header as JSON, its `monotonic_to_realtime_ns` added to
`begin_ns` gives the wall clock. Texts are dictionaries, numbers int64.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from spantrace.exporters.layout import told_header
from spantrace.exporters.rows import NAMES, NUMBERS, pieces
from spantrace.files import written_whole
from spantrace.recording import Recording

SUFFIX = ".parquet"


def write(recording: Recording, path: Path) -> None:
    """Write the rows; SpantraceError where the file cannot be written, and then there is none."""
    schema = pyarrow.schema(
        [pyarrow.field(name, _type(name), nullable=name == "rank") for name in NAMES],
        metadata={"spantrace": json.dumps(told_header(recording))},
    )
    with written_whole(path) as file, parquet.ParquetWriter(file, schema) as writer:
        for piece in pieces(recording):
            writer.write_table(pyarrow.table(piece, schema=schema))


def _type(name: str) -> Any:
    if name in NUMBERS:
        return pyarrow.int64()
    return pyarrow.bool_() if name == "detail" else pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
