"""Exports of Nsight Systems as recordings; the database has the exporter's tables, as far as they are read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from traced import MS, TOKEN, US, cycles, save

from analyzers.co_saturation import co_saturation
from analyzers.span_table import span_table
from analyzers.trust import trust
from spantrace.cli.main import run
from spantrace.errors import SpantraceError
from spantrace.loading import load
from spantrace.recording import Recording

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, text TEXT,
    globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
    graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
"""
PID, OTHER_PID, VM = 4242, 4243, 3 << 56
UTC = 1_790_857_026_000_000_000


class Export:
    """A database into which rows are written as the exporter would."""

    def __init__(self, path: Path) -> None:
        self.path, self.database = path, sqlite3.connect(path)
        self.database.executescript(SCHEMA)
        self.add("TARGET_INFO_GPU", 1, 0, "NVIDIA H200")
        self.add("TARGET_INFO_SESSION_START_TIME", UTC, "", "")
        self.add("TARGET_INFO_SYSTEM_ENV", "HF_TOKEN", TOKEN)

    def add(self, table: str, *row: object) -> None:
        """One row."""
        self.database.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)

    def text(self, value: str) -> int:
        """The id of a string."""
        found = self.database.execute("SELECT id FROM StringIds WHERE value = ?", (value,)).fetchone()
        return int(
            found[0]
            if found
            else self.database.execute("INSERT INTO StringIds (value) VALUES (?)", (value,)).lastrowid or 0
        )

    def events(self, pid: int, *, whole_graphs: bool = False, interned: bool = False) -> None:
        """The cycles that the tests of the other importer have, as this profiler sees them."""
        owner, thread = VM | pid << 24, VM | pid << 24 | 77
        for one in cycles(20, start=5 * MS):
            start, end = one["ts"], one["ts"] + one["dur"]
            name, tie = one["name"], one["args"].get("correlation")
            if one["cat"] == "user_annotation":
                label = name.replace("ProfilerStep#", "[Executor] _forward_step ")
                label += ": 0 ctx reqs, 8 gen reqs" if label != name else ""
                texts = (None, self.text(label)) if interned else (label, None)
                self.add("NVTX_EVENTS", start, end, 59, 0, texts[0], thread, None, texts[1], 0)
            elif one["cat"] == "cuda_runtime":
                versioned = self.text(f"{name}_v10000")
                self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start, end, 0, thread, tie, versioned, 0, None)
            elif one["cat"] == "gpu_memcpy":
                self.add("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, 0, 1, one["tid"], tie, owner, 9, 2)
            elif whole_graphs:
                self.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start, end, 0, 1, one["tid"], tie, owner, 5, 6)
            else:
                kernel = self.text(name)
                self.add("CUPTI_ACTIVITY_KIND_KERNEL", start, end, 0, 1, one["tid"], tie, owner, kernel, kernel, None)

    def load(self) -> Recording:
        """The export as a recording."""
        self.database.commit()
        return load(self.path)


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Export]:
    made = Export(tmp_path / "a #1?.sqlite")
    with closing(made.database):
        yield made


def doubts(recording: Recording) -> str:
    return "\n".join(doubt.text for doubt in trust(recording).doubts)


@pytest.mark.parametrize("interned", [True, False])
def test_the_figures_are_those_of_the_same_work_in_the_other_form(
    interned: bool, export: Export, tmp_path: Path
) -> None:
    export.events(PID, interned=interned)
    recording = export.load()
    assert recording.header["trace"]["cycles_by"] == "the engine's annotations"
    assert recording.header["created"] == "2026-10-01T12:17:06+00:00"
    assert recording.header["processes"][0]["pid"] == PID
    assert recording.cycles.batch.tolist() == [8] * 19
    found, other = co_saturation(recording), co_saturation(load(save(cycles(20), tmp_path / "a.json")))
    assert found is not None
    assert other is not None
    assert (found.gpu, found.kernels, found.wait) == (other.gpu, other.kernels, other.wait)
    row = span_table(recording).row("draft.forward")
    assert row is not None
    assert row.gpu is not None
    assert row.gpu.ms == 1.0


def test_each_process_has_its_own_correlation_ids(export: Export) -> None:
    export.events(PID)
    export.events(OTHER_PID)
    recording = export.load()
    assert recording.header["trace"]["kernels"] == 19 * 3
    assert "have no launch" not in doubts(recording)
    assert recording.header["processes"][0]["pid"] == PID


def test_cycles_by_the_repeating_graph(export: Export) -> None:
    export.events(PID)
    export.database.execute("DELETE FROM NVTX_EVENTS")
    recording = export.load()
    assert recording.header["trace"]["cycles_by"] == "the repeating graph launch"
    assert set(recording.cycles.period.tolist()) == {10 * MS}
    assert recording.cycles.start[0] == 6 * MS + 10 * US


def test_graphs_that_were_traced_as_a_whole_count_and_are_told(export: Export) -> None:
    export.events(PID, whole_graphs=True)
    recording = export.load()
    assert recording.header["trace"]["kernels_in_graphs"] == recording.header["trace"]["kernels"] == 19 * 3
    assert "graphs were traced as a whole" in doubts(recording)


def test_what_is_wrong_with_a_row_is_counted(export: Export) -> None:
    export.events(PID)
    owner, name = VM | PID << 24, export.text("gemm")
    for start, end in ((5, None), (None, 7), (9, 3)):
        export.add("CUPTI_ACTIVITY_KIND_KERNEL", start, end, 0, 1, 7, 1, owner, name, name, None)
    export.add("NVTX_EVENTS", 6 * MS, None, 60, 0, "never ended", owner, None, None, 0)
    recording = export.load()
    assert "2 of the trace's events have no duration" in doubts(recording)
    assert "1 of the trace's events have no time" in doubts(recording)
    assert "1 of the trace's events have a negative duration" in doubts(recording)


def test_without_the_gpus_tables_nothing_is_idle(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    export.events(PID)
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        export.database.execute(f"DROP TABLE {table}")
    export.load()
    assert run(["report", str(export.path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "trace of Nsight Systems" in out
    assert "HOST ONLY" in out
    assert "the trace has no GPU part: 80 CUDA calls" in out
    assert TOKEN not in out


def test_another_database_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (a)")
        database.commit()
    with pytest.raises(SpantraceError, match="is no export of Nsight Systems: it has none of its tables"):
        load(path)
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 5000)
    with pytest.raises(SpantraceError, match="is no export of Nsight Systems, or is damaged"):
        load(path)
