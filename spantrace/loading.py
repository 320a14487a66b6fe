"""Reads a recording from a file: a finished one, the journal of one under way or cut short, or another's trace."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spantrace.errors import SpantraceError
from spantrace.frames import Frame, read_frames, unpack_rows
from spantrace.header import complete_header
from spantrace.importers import LONGEST_MARK, trace_reader
from spantrace.joining import join
from spantrace.recording import MAGIC, SCHEMA, Cycles, Recording, Spans
from spantrace.spans import SPAN_ID


def load(path: Path) -> Recording:
    """Read a recording, or the journal of one that is still running or was cut short (then it is `partial`).

    A trace of another profiler is read as the recording that `spantrace.importers` makes of it.
    Raises SpantraceError where the file cannot be read or is neither.
    """
    try:
        with path.open("rb") as file:
            if (trace := trace_reader(file.read(LONGEST_MARK))) is not None:
                return trace(path)
            file.seek(0)
            return _assemble(list(read_frames(file)))
    except OSError as error:
        raise SpantraceError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise SpantraceError(f"{path} is not a spantrace recording, or is damaged ({error})") from error
    except SpantraceError as error:
        raise SpantraceError(f"{path}: {error}", error.exit_code) from error


def _assemble(frames: list[Frame]) -> Recording:
    if not frames:
        raise ValueError("it is empty or ends within its header")
    if frames[0].get("type") != MAGIC:
        raise ValueError("its first bytes are not a recording's")
    if frames[0]["schema"] > SCHEMA:
        raise SpantraceError(f"written by a newer spantrace (schema {frames[0]['schema']}); upgrade to read it")
    header = frames[0]["header"]
    if not isinstance(header, dict):
        raise ValueError("its header is no map")
    ending = frames[-1]["type"]
    if "journal" in header:
        return join(complete_header(header, frames), frames, partial=ending != "end")
    tables: dict[str, dict[str, NDArray[np.int64]]] = {"Cycles": {}, "Spans": {}}
    for frame in frames:
        if frame["type"] == "column":
            tables[frame["table"]][frame["name"]] = unpack_rows(frame)
    if ending not in ("end", "partial") and len(tables["Spans"]) < len(fields(Spans)):
        raise SpantraceError("the file is cut short, a part of its table is missing; copy it anew")
    count = len(tables["Cycles"]["step"])
    every_one = np.ones((count, 1), dtype=np.int64)  # where an older recorder wrote no such column
    cycles, spans = _table(Cycles, {"detail": every_one, **tables["Cycles"]}), _table(Spans, tables["Spans"])
    if not _all_in(spans.cycle, len(cycles)) or not _all_in(spans.name, len(SPAN_ID)):
        raise ValueError("a span has no cycle or no name")
    return Recording(header, cycles, spans, partial=ending != "end")


def _all_in(column: NDArray[Any], size: int) -> bool:
    return len(column) == 0 or bool(column.min() >= 0 and column.max() < size)


def _table(kind: Any, columns: dict[str, NDArray[np.int64]]) -> Any:
    """A table of int columns narrowed to the types that its class declares."""
    narrowed = {}
    for name, annotation in kind.__annotations__.items():
        column = columns[name].astype(annotation.split("np.")[1].rstrip("]"))
        narrowed[name] = column if name in ("drafted", "accepted") else column[:, 0]
    if len({len(column) for column in narrowed.values()}) > 1:
        raise ValueError("its columns differ in length")
    return kind(**narrowed)
