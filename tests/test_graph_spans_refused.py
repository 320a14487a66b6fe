"""Where there can be no CUDA graphs, asking for their parts is one sentence, before anything is started."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from spantrace.cli.main import run
from spantrace.errors import SpantraceError
from spantrace.vllm_adapter import graph_request
from spantrace.vllm_adapter.graph_request import GRAPH_SPANS, refuse_without_graphs
from spantrace.vllm_adapter.launch import serve_environment
from spantrace.vllm_adapter.marked_graphs import told

no_gpu = pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")


@no_gpu
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")
def test_a_server_on_a_machine_without_a_gpu_is_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--graph-spans", "--", "some-model"]) == 2
    assert capsys.readouterr().err == (
        "spantrace: --graph-spans: no CUDA graphs here, this machine has no NVIDIA GPU; leave it out\n"
    )


def test_a_server_that_captures_none_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_request, "gpu_states", lambda: [{"name": "a GPU"}])
    with pytest.raises(SpantraceError, match="--enforce-eager captures none"):
        refuse_without_graphs(["model", "--enforce-eager"])
    refuse_without_graphs(["model"])


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_the_built_in_cycle_on_a_cpu_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.spantrace"
    assert run(["run", "--graph-spans", "--device", "cpu", "-o", str(path)]) == 2
    assert capsys.readouterr().err == (
        "spantrace: --graph-spans: no CUDA graphs here, the cycle runs on the CPU; leave it out\n"
    )
    assert not list(tmp_path.iterdir())


def test_only_a_server_that_was_asked_gets_the_variable() -> None:
    inherited = {GRAPH_SPANS: "1", "HOME": "/"}
    assert GRAPH_SPANS not in serve_environment(inherited)
    assert serve_environment(inherited, graph_spans=True)[GRAPH_SPANS] == "1"


@no_gpu
def test_a_recording_of_a_server_that_was_asked_in_vain_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, GRAPH_SPANS, "1")
    found = told(object())
    assert found is not None
    assert found["spans"] == {}
    assert found["missing"] == {"graph spans": "no CUDA graphs here: this server runs without a GPU"}
    assert told(None) is None
    monkeypatch.delitem(os.environ, GRAPH_SPANS)
    assert told(object()) is None
