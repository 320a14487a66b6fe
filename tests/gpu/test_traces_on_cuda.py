"""torch.profiler on a GPU: kernels inside graphs counted, busy as pandas has it, cycles by step and by graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spantrace.loading import load

torch = pytest.importorskip("torch")
pytest.importorskip("pandas")
pytestmark = pytest.mark.gpu
STEPS, LAYERS = 12, 20


def captured(size: Any, layers: int) -> Any:
    """A graph of this many multiplications."""
    size @ size
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(layers):
            size @ size
    return graph


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of a long graph, some kernels beside it on another stream, a short graph, a copy to the host and a wait."""
    profiler, size = torch.profiler, torch.ones(512, 512, device="cuda")
    target, draft = captured(size, LAYERS), captured(size, 3)
    side, host = torch.cuda.Stream(), torch.empty(512, 512, pin_memory=True)

    def step() -> None:
        with profiler.record_function("target.forward"):
            target.replay()
        with profiler.record_function("sample"), torch.cuda.stream(side):
            size.sum()
        with profiler.record_function("draft.propose"):
            draft.replay()
        host.copy_(size, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA],
        schedule=profiler.schedule(wait=1, warmup=2, active=STEPS, repeat=1),
        acc_events=True,
    ) as profile:
        for _ in range(STEPS + 3):
            step()
            profile.step()
    path = tmp_path_factory.mktemp("trace") / "a.pt.trace.json"
    profile.export_chrome_trace(str(path))
    return path


def test_busy_is_the_union_that_pandas_finds(trace: Path) -> None:
    from trace_tables import same_busy

    assert same_busy(trace) == STEPS - 1


def test_kernels_inside_graphs_are_counted(trace: Path) -> None:
    about = load(trace).header["trace"]
    assert about["graph_launches"] >= 2 * STEPS
    assert about["kernels_in_graphs"] >= (LAYERS + 3) * STEPS
    assert about["kernels"] > about["kernels_in_graphs"]
    assert about["copies"] >= STEPS


def test_cycles_by_the_repeating_graph_are_the_steps(trace: Path, tmp_path: Path) -> None:
    data = json.loads(trace.read_text())
    data["traceEvents"] = [one for one in data["traceEvents"] if one.get("cat") != "user_annotation"]
    path = tmp_path / "without_annotations.json"
    path.write_text(json.dumps(data))
    recording = load(path)
    assert recording.header["trace"]["cycles_by"] == "the repeating graph launch"
    assert STEPS - 1 <= len(recording.cycles) <= STEPS
