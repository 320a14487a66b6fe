"""Exports read back by other readers: Perfetto's by its own classes, the tables by pandas."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import BuiltinClock, Trace, TrackEvent
from pyarrow import parquet as pyarrow_parquet
from recordings import cycles_of, header, make_recording, spans_of
from streamed import Server

from spantrace.cli.export import FORMS
from spantrace.cli.main import run
from spantrace.exporters import csv, jsonl, kineto, parquet, perfetto
from spantrace.loading import load
from spantrace.recording import Recording
from spantrace.spans import SPAN_NAMES, Kind, Track

PROGRAM = str(Path(sys.executable).with_name("spantrace"))
LATE = 1_800_000_000_123_456_789
"""A time that a float64 cannot hold."""
RESULTS = Path(__file__).parents[1] / "examples/results"
SECRET = "/home/me/secret-key"
READERS = {
    csv: pandas.read_csv,
    jsonl: lambda path: pandas.read_json(path, lines=True, dtype={"begin_ns": "int64", "duration_ns": "int64"}),
    parquet: pandas.read_parquet,
}


def two_ranks() -> Recording:
    """An engine and two workers that run the same two cycles, the second rank a little later; a cycle not in detail."""
    bounds = [(LATE + at * 1000, LATE + at * 1000 + 900) for at in range(2)]
    rows = [("cycle", Track.HOST, at, *bound, 0) for at, bound in enumerate(bounds)]
    for rank in (0, 1):
        for at, (start, _) in enumerate(bounds):
            rows += [("target.forward", Track.HOST, at, start + 100 + rank, start + 200 + rank, 1 + 2 * rank)]
            rows += [("target.forward", Track.GPU, at, start + 300 + rank, start + 800 + rank, 2 + 2 * rank)]
    processes = [{"pid": 9, "role": "EngineCore", "rank": None}]
    processes += [{"pid": 10 + rank, "role": "Worker", "rank": rank} for rank in (0, 1)]
    threads = [(0, "main"), (1, "main"), (1, "GPU stream"), (2, "main"), (2, "GPU stream")]
    lanes = [{"process": process, "thread": thread} for process, thread in threads]
    made = cycles_of(bounds, kind=[Kind.MIXED, Kind.STEADY], batch=[3, 4], detail=[True, False])
    about = header(processes=processes, lanes=lanes, monotonic_to_realtime_ns=5)
    return Recording(about, made, spans_of(sorted(rows, key=lambda row: row[3])))


def overlapping() -> Recording:
    """GPU spans of one stream, of which some overlap, some nest, some touch and some have no length."""
    bounds = [(0, 30), (20, 50), (25, 28), (28, 30), (50, 50), (50, 60), (50, 60), (60, 70)]
    rows = [("sample", Track.GPU, 0, *bound) for bound in bounds]
    return Recording(header(), cycles_of([(0, 100)]), spans_of(rows))


def packets(path: Path) -> list[Any]:
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    return list(trace.packet)


def slices(path: Path) -> list[tuple[str, str, int, int]]:
    """Process, track, name, begin and end as a reader finds them that closes what was opened last on a track."""
    tracks, owners, open_, found = {}, {}, {}, []
    for packet in packets(path):
        if packet.HasField("track_descriptor"):
            one = packet.track_descriptor
            owners[one.uuid] = one.process.process_name
            tracks[one.uuid] = (owners.get(one.parent_uuid, ""), one.name)
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_.setdefault(event.track_uuid, []).append((event.name, packet.timestamp))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, begin = open_[event.track_uuid].pop()
            found.append((*tracks[event.track_uuid], name, begin, packet.timestamp))
    assert not any(open_.values())
    return found


def in_order(path: Path) -> bool:
    """Whether on each track no event comes before an earlier one, so that a stable sort by time leaves them so."""
    times: dict[int, list[int]] = {}
    for packet in packets(path):
        if packet.HasField("track_event"):
            times.setdefault(packet.track_event.track_uuid, []).append(packet.timestamp)
    return all(sorted(one) == one for one in times.values())


def rows_of(recording: Recording) -> list[tuple[Any, ...]]:
    """What a table must hold, written out by the recording's own columns."""
    found, spans, cycles = [], recording.spans, recording.cycles
    for at in range(len(spans.name)):
        cycle, lane = int(spans.cycle[at]), recording.header["lanes"][spans.lane[at]]
        process = recording.header["processes"][lane["process"]]
        found.append((cycle, int(cycles.step[cycle]), Kind(cycles.kind[cycle]).name.lower(), int(cycles.batch[cycle]),
                      bool(cycles.detail[cycle]), SPAN_NAMES[spans.name[at]], ("host", "gpu")[spans.track[at]],
                      process["role"], process["pid"], process.get("rank"), lane["thread"],
                      int(spans.start[at]), int(spans.end[at] - spans.start[at])))  # fmt: skip
    return found


TWO = Server(60, ranks=2).joined()
RECORDINGS = {
    "gpu": make_recording(cycles=40),
    "no gpu": make_recording(kernels=None, cycles=30),
    "ranks": two_ranks(),
    "joined ranks": TWO,
    "no span": Recording(header(), cycles_of([]), spans_of([])),
}


@pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)
@pytest.mark.parametrize("exporter", READERS, ids=lambda one: one.SUFFIX)
def test_a_table_holds_every_span_to_the_nanosecond(recording: Recording, exporter: Any, tmp_path: Path) -> None:
    path = tmp_path / f"a{exporter.SUFFIX}"
    exporter.write(recording, path)
    if exporter is jsonl and not len(recording.spans.name):
        assert path.read_bytes() == b""
        return
    table = READERS[exporter](path)
    assert table["begin_ns"].dtype == table["duration_ns"].dtype == np.int64 or not len(table)
    ranks = [None if pandas.isna(rank) else int(rank) for rank in table.pop("rank")]
    table.insert(9, "rank", pandas.array(ranks, dtype=object))
    assert list(table.itertuples(index=False, name=None)) == rows_of(recording)


def test_a_long_recording_is_written_piece_by_piece(tmp_path: Path) -> None:
    recording = make_recording(cycles=3500)
    assert len(recording.spans.name) > 1 << 16
    for exporter, read in READERS.items():
        exporter.write(recording, tmp_path / "a")
        table = read(tmp_path / "a")
        assert np.array_equal(table["begin_ns"], recording.spans.start)
        assert np.array_equal(table["cycle"], recording.spans.cycle)


def test_parquet_tells_the_header(tmp_path: Path) -> None:
    parquet.write(two_ranks(), tmp_path / "a")
    told = json.loads(pyarrow_parquet.read_schema(tmp_path / "a").metadata[b"spantrace"])
    assert told["monotonic_to_realtime_ns"] == 5
    assert [one.get("rank") for one in told["processes"]] == [None, 0, 1]


@pytest.mark.parametrize("recording", [*RECORDINGS.values(), overlapping()], ids=[*RECORDINGS, "overlapping"])
def test_perfetto_finds_every_span_in_its_place(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    perfetto.write(recording, path)
    assert in_order(path)
    spans = recording.spans
    wanted = Counter((SPAN_NAMES[n], s, e) for n, s, e in zip(spans.name, spans.start, spans.end, strict=True))
    assert Counter(row[2:] for row in slices(path)) == wanted


def test_perfetto_shows_processes_ranks_and_threads(tmp_path: Path) -> None:
    perfetto.write(two_ranks(), tmp_path / "a")
    assert {row[:3] for row in slices(tmp_path / "a")} == {
        ("EngineCore", "main", "cycle"),
        ("Worker rank 0", "main", "target.forward"),
        ("Worker rank 0", "GPU stream", "target.forward"),
        ("Worker rank 1", "main", "target.forward"),
        ("Worker rank 1", "GPU stream", "target.forward"),
    }


def test_perfetto_ties_each_ranks_gpu_spans_to_its_own_launches(tmp_path: Path) -> None:
    perfetto.write(two_ranks(), tmp_path / "a")
    tied: dict[int, list[int]] = {}
    for packet in packets(tmp_path / "a"):
        for flow in packet.track_event.flow_ids:
            tied.setdefault(flow, []).append(packet.timestamp - LATE)
    assert sorted(map(sorted, tied.values())) == [[100, 300], [101, 301], [1100, 1300], [1101, 1301]]


def test_perfetto_knows_the_clocks_and_the_cycles(tmp_path: Path) -> None:
    perfetto.write(two_ranks(), tmp_path / "a")
    first, *others = packets(tmp_path / "a")
    assert first.clock_snapshot.primary_trace_clock == BuiltinClock.BUILTIN_CLOCK_MONOTONIC
    clocks = {clock.clock_id: clock.timestamp for clock in first.clock_snapshot.clocks}
    assert clocks == {BuiltinClock.BUILTIN_CLOCK_MONOTONIC: LATE, BuiltinClock.BUILTIN_CLOCK_REALTIME: LATE + 5}
    events = [packet for packet in others if packet.HasField("track_event")]
    assert {packet.timestamp_clock_id for packet in events} == {BuiltinClock.BUILTIN_CLOCK_MONOTONIC}
    cycle = next(packet.track_event for packet in events if packet.track_event.name == "cycle")
    told = {one.name: one.int_value for one in cycle.debug_annotations if one.HasField("int_value")}
    assert told == {
        "cycle": 0,
        "step": 0,
        "period_ns": 1000,
        "batch": 3,
        "scheduled_tokens": 1,
        "drafting": 0,
        "detail": 1,
    }


def test_times_that_perfetto_cannot_hold_are_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Recording(header(), cycles_of([(-5, 5)]), spans_of([("cycle", Track.HOST, 0, -5, 5)])).save(tmp_path / "a")
    assert run(["export", str(tmp_path / "a"), "--to", "perfetto", "-o", str(tmp_path / "b")]) == 2
    assert "its times begin before 0" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("form", FORMS)
def test_only_what_may_be_shared_is_exported(form: str, tmp_path: Path) -> None:
    recording = make_recording(
        cycles=10,
        server={"model": f"{SECRET}/model-8b", "url": SECRET, "args": SECRET, "served_model_name": SECRET},
        processes=[{"pid": 1, "role": "EngineCore", "title": SECRET, "first_error": SECRET}],
        notes=[SECRET],
        options={"output": SECRET},
        environment={"HF_TOKEN": SECRET},
    )
    recording.save(tmp_path / "a")
    assert run(["export", str(tmp_path / "a"), "--to", form, "-o", str(tmp_path / "b")]) == 0
    data = (tmp_path / "b").read_bytes()
    if form == "kineto":
        import gzip

        data = gzip.decompress(data)
    assert b"secret-key" not in data


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_leaves_nothing(form: str, tmp_path: Path) -> None:
    make_recording(cycles=1000).save(tmp_path / "a")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    command = [PROGRAM, "export", str(tmp_path / "a"), "--to", form, "-o", str(tmp_path / "b")]
    told = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=60, check=False)
    assert told.returncode == 2
    assert told.stderr.startswith("spantrace: cannot write ")
    assert len(told.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("form", "package"), [("perfetto", "perfetto"), ("parquet", "pyarrow")])
def test_a_missing_package_is_named(
    form: str, package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_recording(cycles=5).save(tmp_path / "a")
    monkeypatch.delitem(sys.modules, f"spantrace.exporters.{form}")
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert run(["export", str(tmp_path / "a"), "--to", form, "-o", str(tmp_path / "b")]) == 2
    assert f"--to {form} needs {package}; pip install 'spantrace[{form}]'" in capsys.readouterr().err


def test_packages_that_do_not_fit_together_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "perfetto").mkdir()
    (tmp_path / "perfetto/__init__.py").write_text("from google.protobuf import nothing_of_this_name")
    make_recording(cycles=5).save(tmp_path / "a")
    command = [PROGRAM, "export", str(tmp_path / "a"), "--to", "perfetto"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert told.returncode == 2
    assert told.stderr.startswith(
        "spantrace: --to perfetto needs packages that do not fit together here (cannot import"
    )
    assert told.stderr.endswith("; pip install --upgrade 'spantrace[perfetto]'\n")


def test_a_report_of_what_was_exported_is_that_of_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU, and of all ranks of a server."""
    for recording, options in ((make_recording(kernels=None, cycles=60), ()), (TWO, ("--rank", "all"))):
        recording.save(tmp_path / "a")
        kineto.write(recording, tmp_path / f"a{kineto.SUFFIX}")
        said = []
        for name in ("a", f"a{kineto.SUFFIX}"):
            assert run(["report", str(tmp_path / name), *options]) == 0
            said.append(capsys.readouterr().out)
        assert said[0].replace("nvidia/", "") == said[1]
        assert ("RANKS" in said[0]) == bool(options)


@pytest.mark.parametrize("name", ["v0.33.0-V2-tp2", "v0.33.0-V2-async", "h200-dspark-on"])
def test_a_report_of_a_server_on_an_h200_is_the_same_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With who else was on each rank's GPU, but not which processes these were."""
    path, exported = RESULTS / f"{name}.spantrace", tmp_path / f"a{kineto.SUFFIX}"
    kineto.write(load(path), exported)
    said = []
    for one in (path, exported):
        assert run(["report", str(one)]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    others = [about["gpu"]["other_processes"] for about in load(exported).header["processes"] if about.get("gpu")]
    assert not any(any(one) for one in others)


def test_graphs_with_marks_keep_their_figures_and_no_text(tmp_path: Path) -> None:
    figures = {"marks": 6, "plain_ms": 1.0, "marked_ms": 1.1}
    spans = {"target.forward": {**figures, "x": SECRET}, SECRET: figures}
    graphs = {"empty_ns": 3.5, "spans": spans, "missing": {"draft.forward": SECRET}}
    recording = make_recording(cycles=10, processes=[{"pid": 1, "role": "Worker", "rank": 0, "graph_spans": graphs}])
    kineto.write(recording, tmp_path / f"a{kineto.SUFFIX}")
    told = load(tmp_path / f"a{kineto.SUFFIX}").header["processes"][0]["graph_spans"]
    assert told == {"empty_ns": 3.5, "spans": {"target.forward": figures}}


def test_ranks_come_back_from_kineto_form(tmp_path: Path) -> None:
    recording = two_ranks()
    kineto.write(recording, tmp_path / f"a{kineto.SUFFIX}")
    again = load(tmp_path / f"a{kineto.SUFFIX}")
    assert [one.get("rank") for one in again.header["processes"]] == [None, 0, 1]
    assert rows_of(again) == rows_of(recording)
