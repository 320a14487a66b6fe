"""A recording as a trace and back: the same recording, and a trace that other tools understand."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import cycles_of, header, make_recording, spans_of
from traced import cycles, save

from analyzers.co_saturation import co_saturation
from analyzers.span_table import span_table
from analyzers.trust import trust
from spantrace.cli.main import run
from spantrace.exporters import kineto
from spantrace.importers.ranges import united
from spantrace.loading import load
from spantrace.recording import Recording
from spantrace.spans import GRAPH_PARTS, SPAN_ID, WITHIN_OTHERS, GraphMode, Kind, Track

REPOSITORY = Path(__file__).parents[1]
HTA_PYTHON = Path(os.environ.get("SPANTRACE_TEST_HTA") or REPOSITORY / ".cache/hta/bin/python")
"""A Python that has HolisticTraceAnalysis and pandas below 3, which `make test` installs."""
WITH_GRAPH_PARTS = REPOSITORY / "examples/results/h200-graph-spans.spantrace"
HTA_PROGRAM = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/", include_last_profiler_step=True)
table = found.t.get_trace(0)
names = [found.t.symbol_table.sym_table[number] for number in table["name"]]
busy = found.get_temporal_breakdown(visualize=False)
busy_us = float(busy["compute_time(us)"][0] + busy["non_compute_time(us)"][0])
kernels, _ = found.get_gpu_kernel_breakdown(visualize=False)
summed_us = float(kernels["sum"].sum())
steps = sum(name.startswith("ProfilerStep#") for name in names)
print(json.dumps({"steps": steps, "busy_us": busy_us, "summed_us": summed_us}))
"""


def exported(recording: Recording, tmp_path: Path) -> Path:
    path = tmp_path / f"a{kineto.SUFFIX}"
    kineto.write(recording, path)
    return path


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def two_processes() -> Recording:
    """Every column set, a worker beside the engine whose row lies in the next cycle's time, a cycle not in detail."""
    bounds = [(10**9 + index * 1_000_003, 10**9 + index * 1_000_003 + 900_001) for index in range(4)]
    rows = [("cycle", Track.HOST, index, *bound, 0) for index, bound in enumerate(bounds)]
    rows += [("target.forward", Track.HOST, 0, 10**9 + 1_000_500, 10**9 + 1_000_777, 1)]
    rows += [("target.forward", Track.GPU, 0, 10**9 + 1_000_600, 10**9 + 1_500_001, 2)]
    rows += [("sample", Track.GPU, 1, 10**9 + 1_600_600, 10**9 + 1_600_601, 2)]
    processes = [{"pid": 11, "role": "EngineCore", "lost": 3, "hook_errors": 1}, {"pid": 12, "role": "Worker"}]
    lanes = [{"process": 0, "thread": "main"}, {"process": 1, "thread": "main"}, {"process": 1, "thread": "GPU stream"}]
    made = cycles_of(
        bounds,
        kind=[Kind.WARMUP, Kind.STEADY, Kind.MIXED, Kind.STEADY],
        batch=[1, 2, 3, 4],
        drafting=[0, 2, 1, 4],
        drafted=[4, 3],
        accepted=[2, 1],
        graph=GraphMode.PIECEWISE,
        detail=[True, True, False, True],
    )
    about = header(processes=processes, lanes=lanes, left_out={"partial": 2})
    return Recording(about, made, spans_of(sorted(rows, key=lambda row: row[3])))


@pytest.mark.parametrize(
    "recording",
    [make_recording(cycles=60), make_recording(kernels=None, cycles=30), two_processes(), load(WITH_GRAPH_PARTS)],
    ids=range(4),
)
def test_a_recording_exported_and_imported_is_the_same(recording: Recording, tmp_path: Path) -> None:
    again = load(exported(recording, tmp_path))
    for name, column in vars(recording.cycles).items():
        assert np.array_equal(vars(again.cycles)[name], column), name
        assert vars(again.cycles)[name].dtype == column.dtype, name
    order = np.lexsort([recording.spans.name, recording.spans.start])
    order_again = np.lexsort([again.spans.name, again.spans.start])
    for name, column in vars(recording.spans).items():
        assert np.array_equal(vars(again.spans)[name][order_again], column[order]), name


def test_its_table_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.spantrace"
    make_recording(cycles=120).save(path)
    assert run(["report", str(path)]) == 0
    before = capsys.readouterr().out
    assert run(["export", str(path), "--to", "kineto", "-o", str(tmp_path / "b.pt.trace.json.gz")]) == 0
    assert "b.pt.trace.json.gz: 120 cycles" in capsys.readouterr().err
    assert run(["report", str(tmp_path / "b.pt.trace.json.gz")]) == 0
    assert capsys.readouterr().out == before.replace("nvidia/", "")


def test_what_was_imported_can_be_exported(tmp_path: Path) -> None:
    first = load(save(cycles(20), tmp_path / "a.json"))
    again = load(exported(first, tmp_path))
    assert span_table(again) == span_table(first)
    assert co_saturation(again) == co_saturation(first)
    counted = ("source", "cycles_by", "events", "kernels", "kernels_in_graphs", "graph_launches", "copies")
    assert again.header["trace"] == {key: first.header["trace"][key] for key in counted}


def test_other_tools_find_what_they_look_for(tmp_path: Path) -> None:
    found = events(exported(two_processes(), tmp_path))
    steps = [one for one in found if one["name"].startswith("ProfilerStep#")]
    assert [one["name"] for one in steps] == [f"ProfilerStep#{index}" for index in range(4)]
    assert {one["cat"] for one in steps} == {"user_annotation"}
    named = {(one["name"], one["pid"]): one["args"] for one in found if one["ph"] == "M"}
    assert named["process_name", 11] == {"name": "EngineCore"}
    assert named["process_labels", 0] == {"labels": "GPU 0"}
    assert named["thread_name", 0] == {"name": "GPU stream"}
    kernels = [one for one in found if one.get("cat") == "kernel"]
    assert [one["name"] for one in kernels] == ["target.forward", "sample"]
    assert [one["name"] for one in found if one.get("cat") == "gpu_user_annotation"] == ["target.forward", "sample"]
    host = next(one for one in found if one["name"] == "target.forward" and one.get("cat") == "user_annotation")
    assert host["args"]["correlation"] == kernels[0]["args"]["correlation"] > 0
    assert "correlation" not in kernels[1]["args"], "the host's side of it was not recorded"
    flows = [(one["ph"], one["id"], one["pid"]) for one in found if one.get("cat") == "ac2g"]
    assert flows == [("s", host["args"]["correlation"], 12), ("f", host["args"]["correlation"], 0)]


def test_no_kernel_lies_within_another(tmp_path: Path) -> None:
    """A graph's parts are annotations alone: a sum over kernels counts their time once, in the graph."""
    found = [one for one in events(exported(load(WITH_GRAPH_PARTS), tmp_path)) if one.get("ph") == "X"]
    kernels, annotated = (
        {one["name"] for one in found if one["cat"] == category} for category in ("kernel", "gpu_user_annotation")
    )
    assert annotated - kernels == {name for name in annotated if name in GRAPH_PARTS}
    assert len(annotated - kernels) == 9


def test_gpu_spans_are_tied_to_their_launches_in_order(tmp_path: Path) -> None:
    """Two forwards and three rows of GPU time: the third is the last forward's too, another cycle's is not."""
    rows = [("draft.forward", Track.HOST, 0, start, start + 5) for start in (10, 20)]
    rows += [("draft.forward", Track.GPU, 0, start, start + 9) for start in (100, 200, 300)]
    rows += [("draft.forward", Track.GPU, 1, 400, 409)]
    recording = Recording(header(), cycles_of([(0, 50), (60, 99)]), spans_of(rows))
    found = [one for one in events(exported(recording, tmp_path)) if one["name"] == "draft.forward"]
    ties = {one["ts"]: one["args"].get("correlation") for one in found}
    assert ties[0.01] != ties[0.02]
    assert [ties[0.1], ties[0.2], ties[0.3], ties[0.4]] == [ties[0.01], ties[0.02], ties[0.02], None]


def test_times_are_decimals_of_microseconds(tmp_path: Path) -> None:
    data = gzip.decompress(exported(two_processes(), tmp_path).read_bytes()).decode()
    assert '"ts": 1000000.000, "dur": 900.001' in data
    assert '"ts": 1001000.500, "dur": 0.277' in data


def test_only_what_may_be_shared_is_exported(tmp_path: Path) -> None:
    secret = "/home/me/secret-key"
    recording = make_recording(
        cycles=10,
        server={"model": f"{secret}/model-8b", "url": secret, "args": secret, "served_model_name": secret},
        processes=[{"pid": 1, "role": "EngineCore", "title": secret, "first_error": secret}],
        notes=[secret],
        options={"output": secret},
        environment={"HF_TOKEN": secret},
    )
    data = gzip.decompress(exported(recording, tmp_path).read_bytes()).decode()
    assert "secret-key" not in data
    assert "model-8b" in data


def test_it_still_says_what_is_in_doubt(tmp_path: Path) -> None:
    again = load(exported(make_recording(cycles=10, notes=["one", "two"], partial=True), tmp_path))
    assert again.partial
    texts = [doubt.text for doubt in trust(again).doubts]
    assert "the recording is partial: it was cut off, or a process left it" in texts
    assert "2 doubts that the recording itself tells were not exported" in texts


def test_it_overwrites_nothing_unasked(tmp_path: Path) -> None:
    path = tmp_path / "a.spantrace"
    make_recording(cycles=5).save(path)
    arguments = ["export", str(path), "--to", "kineto", "-o", str(tmp_path / "b.gz")]
    assert [run(arguments), run(arguments), run([*arguments, "--force"])] == [0, 2, 0]
    assert run(["export", str(path), "--to", "kineto", "-o", str(tmp_path / "none" / "b.gz")]) == 2
    assert run(["export", str(path), "--to", "kineto", "-o", str(path / "b.gz")]) == 2, "the folder is a file"


def test_it_never_replaces_what_it_is_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = exported(make_recording(cycles=5), tmp_path)
    before = path.read_bytes()
    assert run(["export", str(path), "--to", "kineto", "-o", str(path), "--force"]) == 2
    assert "is the recording itself; choose another name" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_trace_of_ours_that_is_damaged_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = exported(make_recording(cycles=5), tmp_path)
    text = gzip.decompress(path.read_bytes()).decode()
    path.write_text(text.replace('"kind": "STEADY"', '"kind": "OTHER"', 1))
    assert run(["report", str(path)]) == 2
    path.write_text(text.replace('"period_ns"', '"other"', 1))
    assert run(["report", str(path)]) == 2
    assert "a cycle is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("was", "is_", "code"),
    [
        ('"process": 0', '"process": "x"', 2),
        ('"process": 0', '"process": 7', 2),
        ('"process": 0', '"other": 0', 2),
        ('"thread": "', '"other": "', 2),
        ('"lost": 0', '"lost": "many"', 0),
        ('"sm_mhz": 1980', '"sm_mhz": "fast"', 0),
        ('"events": ', '"events": "many", "other": ', 2),
        ('"name": "H200"', '"other": "H200"', 0),
        ('"monotonic_to_realtime_ns": 0', '"monotonic_to_realtime_ns": "now"', 0),
    ],
)
def test_a_header_of_ours_with_odd_values_is_one_error_or_does_without(
    was: str, is_: str, code: int, tmp_path: Path
) -> None:
    of_another = load(save(cycles(20), tmp_path / "a.json")).header["trace"]
    ours = make_recording(cycles=5, gpu={"name": "H200", "sm_mhz": 1980})
    ours.header["trace"] = of_another
    path = exported(ours, tmp_path)
    data = gzip.decompress(path.read_bytes()).decode()
    assert was in data
    path.write_text(data.replace(was, is_, 1))
    assert run(["report", str(path), "--html", str(tmp_path / "a.html")]) == code
    assert run(["export", str(path), "--to", "kineto", "-o", str(tmp_path / "b.gz")]) == code


@pytest.mark.skipif(not HTA_PYTHON.exists(), reason="`make hta` installs what this needs")
@pytest.mark.parametrize("recording", [make_recording(cycles=200), load(WITH_GRAPH_PARTS)], ids=["made", "graph-parts"])
def test_hta_finds_the_same_steps_and_the_same_gpu_time(recording: Recording, tmp_path: Path) -> None:
    path = exported(recording, tmp_path)
    told = subprocess.run([HTA_PYTHON, "-c", HTA_PROGRAM, path], capture_output=True, text=True, check=True).stdout
    found = json.loads(told.splitlines()[-1])
    gpu = recording.spans.track == Track.GPU
    of_one = np.zeros(int(gpu.sum()), dtype=np.int64)
    _, _, start, end = united(of_one, of_one, recording.spans.start[gpu], recording.spans.end[gpu])
    assert found["steps"] == len(recording.cycles)
    assert found["busy_us"] == pytest.approx((end - start).sum() / 1e3, rel=0.01)
    nested = np.isin(recording.spans.name[gpu], [SPAN_ID[name] for name in WITHIN_OTHERS])
    lengths = (recording.spans.end - recording.spans.start)[gpu]
    assert found["summed_us"] == pytest.approx(lengths[~nested].sum() / 1e3, rel=0.01)
