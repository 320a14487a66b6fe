"""Reads what `nsys export --type sqlite` makes of an Nsight Systems report.

Tables and columns as NVIDIA documents them for the export; a table that the report lacks has no events. A thread's
global id holds its process id above its lowest 24 bits. The tables that hold the environment are not read. Where
graphs were traced as a whole (`--cuda-graph-trace=graph`) each launch counts as one kernel, gaps in it included.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from spantrace.errors import SpantraceError
from spantrace.importers.trace import LARGEST_TIME, Columns, Labels, Trace

_WHOLE, _START = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "TARGET_INFO_SESSION_START_TIME"
_RANGES = (
    "SELECT start, end, globalTid, globalTid, coalesce(text, value), 0 "
    "FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id WHERE eventType IN (59, 60)"
)
"""Ranges of both sorts, pushed and popped or started and ended."""
_CALLS = (
    "SELECT start, end, globalTid, globalTid, value, correlationId "
    "FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id"
)
_KERNELS = (
    "SELECT start, end, globalPid, streamId, value, correlationId "
    "FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON shortName = id"
)
_GRAPHS = f"SELECT start, end, globalPid, streamId, 'graph ' || graphId, correlationId FROM {_WHOLE}"
_COPIES = "SELECT start, end, globalPid, streamId, 'copy', correlationId FROM CUPTI_ACTIVITY_KIND_"
_QUERIES = {
    "annotations": (("NVTX_EVENTS", _RANGES),),
    "calls": (("CUPTI_ACTIVITY_KIND_RUNTIME", _CALLS),),
    "kernels": (("CUPTI_ACTIVITY_KIND_KERNEL", _KERNELS), (_WHOLE, _GRAPHS)),
    "copies": tuple((f"CUPTI_ACTIVITY_KIND_{kind}", _COPIES + kind) for kind in ("MEMCPY", "MEMSET")),
}
_PROCESS_BITS, _PROCESS = 24, (1 << 24) - 1


def read_trace(path: Path) -> Trace:
    """Read an export; SpantraceError where it is none or is damaged."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _read(database)
    except sqlite3.Error as error:
        raise SpantraceError(f"it is no export of Nsight Systems, or is damaged: {error}") from error


def _read(database: sqlite3.Connection) -> Trace:
    known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not known & {table for queries in _QUERIES.values() for table, _ in queries}:
        raise SpantraceError("it is no export of Nsight Systems: it has none of its tables of events")
    labels, faults, read, tables = Labels(), Counter[str](), 0, {}
    for name, queries in _QUERIES.items():
        columns = Columns()
        for table, query in queries:
            if table in known:
                read += _take(database.execute(query), columns, labels, faults)
        tables[name] = columns.events(faults)
    return Trace(
        "Nsight Systems",
        annotations=tables["annotations"],
        calls=tables["calls"],
        kernels=tables["kernels"],
        copies=tables["copies"],
        labels=labels.all(),
        read=read,
        faults=faults,
        gpu_name=_first(database, known, "TARGET_INFO_GPU", "name"),
        realtime_offset_ns=_first(database, known, _START, "utcEpochNs") or 0,
        owned=True,
        whole_graphs=_first(database, known, _WHOLE, "1") is not None,
    )


def _first(database: sqlite3.Connection, known: set[str], table: str, column: str) -> Any:
    """The first row's value; None where there is no such table or row."""
    row = database.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone() if table in known else None
    return row[0] if row else None


def _take(rows: Iterator[Any], columns: Columns, labels: Labels, faults: Counter[str]) -> int:
    """Add the rows (start, end, global id, thread, name, correlation); returns how many there were."""
    count = 0
    for start, end, owner, thread, name, correlation in rows:
        count += 1
        if not isinstance(start, int) or not abs(start) < LARGEST_TIME:
            faults["without a time"] += 1
        elif not isinstance(end, int) or not end < LARGEST_TIME:
            faults["without dur"] += 1
        elif end < start:
            faults["of negative length"] += 1
        else:
            process = labels.number(int(owner or 0) >> _PROCESS_BITS & _PROCESS)
            columns.add((start, end, process, labels.number(thread), labels.number(str(name)), correlation or 0, -1))
    return count
