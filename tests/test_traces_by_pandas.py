"""The importer's figures against an independent computation with pandas, of torch.profiler's and random traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_tables import STEP, covered, same_busy, table_of
from traced import MS, annotation, copied, kernel, launch, save

from analyzers.co_saturation import gpu_busy, known_cycles
from analyzers.per_cycle import STEADY
from analyzers.trust import trust
from spantrace.loading import load
from spantrace.spans import Track

pytest.importorskip("pandas")
RESULTS = Path(__file__).parents[1] / "examples/results"
OF_AN_H200, OF_A_RANK = RESULTS / "h200-graphs.pt.trace.json.gz", RESULTS / "h200-tp2-rank0.pt.trace.json.gz"


def random_trace(tmp_path: Path, seed: int, count: int = 60) -> Path:
    """Kernels of random length on four streams, launched one by one or in a graph, some after their cycle has ended."""
    random = np.random.default_rng(seed)
    events, tie, now = [], 0, 10**15 + 123
    for index in range(count):
        length = int(random.integers(4 * MS, 9 * MS))
        events.append(annotation(f"{STEP}{index}", now, length))
        at = now + int(random.integers(MS))
        for name in ("target.forward", "draft.forward"):
            events.append(annotation(name, at, MS))
            for _ in range(int(random.integers(1, 4))):
                tie, began = tie + 1, at + int(random.integers(MS // 2))
                events.append(launch(tie, began, graph=bool(random.integers(2))))
                for _ in range(int(random.integers(1, 6))):
                    begin = began + int(random.integers(3 * MS))
                    events.append(
                        kernel(name, begin, int(random.integers(MS)), tie, stream=int(random.integers(7, 11)))
                    )
            at += MS + int(random.integers(MS))
        events += [copied(at + int(random.integers(MS)), int(random.integers(MS)), 0) for _ in range(2)]
        now += length
    order = random.permutation(len(events))
    return save([events[place] for place in order], tmp_path / "random.pt.trace.json.gz")


@pytest.mark.parametrize("seed", range(4))
def test_gpu_busy_is_the_union_over_streams(seed: int, tmp_path: Path) -> None:
    path = random_trace(tmp_path, seed)
    assert same_busy(path) == known_cycles(load(path), STEADY).sum()


def test_a_trace_of_cuda_graphs_on_an_h200() -> None:
    """12 steps of a graph of 20 kernels, one of 3, a kernel on another stream and a copy to the host."""
    assert same_busy(OF_AN_H200) == 11
    about = load(OF_AN_H200).header["trace"]
    assert (about["cycles_by"], about["graph_launches"]) == ("ProfilerStep", 24)
    assert about["kernels_in_graphs"] >= 23 * 12
    assert about["kernels"] > about["kernels_in_graphs"]


def test_a_trace_of_vllm_on_one_of_two_ranks() -> None:
    """14 cycles of vLLM 0.33.0 on an H200, each of two CUDA graphs, of vLLM's own profiler."""
    assert same_busy(OF_A_RANK, step="execute_context") == 13
    recording, table = load(OF_A_RANK), table_of(OF_A_RANK)
    steps = table[(table["cat"] == "user_annotation") & table["name"].str.startswith("execute_context")]
    kernels = table[(table["cat"] == "kernel") & (table["start"] < int(steps["start"].max()))]
    reduces = kernels[kernels["name"].str.contains("cross_device_reduce|nccl")]
    spent = (reduces["end"] - reduces["start"]).groupby(np.searchsorted(steps["start"], reduces["start"])).sum()
    found = recording.durations("communication", Track.GPU)
    assert np.nanmedian(found) == pytest.approx(spent.loc[1:].median(), rel=0.02)
    about = recording.header["trace"]
    assert (about["cycles_by"], about["graph_launches"]) == ("the engine's annotations", 26)
    assert about["kernels_in_graphs"] > 0.9 * about["kernels"]


@pytest.mark.parametrize("seed", range(2))
def test_a_spans_gpu_time_is_the_union_of_what_it_launched(seed: int, tmp_path: Path) -> None:
    path = random_trace(tmp_path, seed)
    recording, table = load(path), table_of(path)
    steps = table[table["name"].str.startswith(STEP)]
    last_end = int(steps["end"].max())
    kernels = table[(table["cat"] == "kernel") & (table["start"] < last_end)]
    calls = table[table["cat"] == "cuda_runtime"]
    launched_at = dict(zip(calls["args"].map(lambda args: args["correlation"]), calls["start"], strict=True))
    at = kernels["args"].map(lambda args: launched_at[args["correlation"]])
    step = np.searchsorted(steps["start"], at, side="right") - 1
    for name in ("target.forward", "draft.forward"):
        found = recording.durations(name, Track.GPU)
        for index in range(len(recording.cycles)):
            own = kernels[(kernels["name"] == name) & (step == index)]
            if not len(own):
                assert np.isnan(found[index])
                continue
            assert found[index] == covered(own, int(own["start"].min()), int(own["end"].max()))
    assert recording.header["trace"]["kernels"] == len(kernels)


@pytest.mark.parametrize("name", ["a.pt.trace.json.gz", "a.json"])
def test_a_trace_that_torch_profiler_wrote(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    profiler = torch.profiler
    size = torch.ones(64, 64)

    def step() -> None:
        with profiler.record_function("gpu_model_runner: forward"):
            size @ size
            with profiler.record_function("not a span of ours"):
                size @ size
        for _ in range(2):
            with profiler.record_function("sample"):
                size.sum()

    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=profiler.schedule(wait=1, warmup=1, active=12, repeat=1),
        acc_events=True,
    ) as profile:
        for _ in range(14):
            step()
            profile.step()
    path = tmp_path / name
    profile.export_chrome_trace(str(path))
    recording, table = load(path), table_of(path)
    steps = table[table["name"].str.startswith(STEP)]
    assert recording.header["trace"]["cycles_by"] == "ProfilerStep"
    assert recording.cycles.start.tolist() == steps["start"].tolist()
    assert recording.cycles.end.tolist() == steps["end"].tolist()
    assert recording.cycles.step.tolist() == [int(one.removeprefix(STEP)) for one in steps["name"]]
    for label, span in (("gpu_model_runner: forward", "target.forward"), ("sample", "sample")):
        rows = table[(table["cat"] == "user_annotation") & (table["name"] == label)]
        step_of = np.searchsorted(steps["start"], rows["start"], side="right") - 1
        expected = (rows["end"] - rows["start"]).groupby(step_of).sum()
        assert recording.durations(span).tolist() == expected.tolist()
        assert recording.calls(span).tolist() == [1 if span == "target.forward" else 2] * len(steps)
    assert gpu_busy(recording) is None
    assert any("the trace has no GPU part" in doubt.text for doubt in trust(recording).doubts)
