"""What is recorded of every kind of speculation, on both model runners, against what vLLM counts itself."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import USUAL
from live import MANY, LiveRecording, assert_clean, assert_same_tokens, kinds, live, record, wait_until

from spantrace.loading import load
from spantrace.recording import Recording
from spantrace.spans import SPAN_NAMES, WAITS, Kind

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

ENGINE = {"cycle": 1, "schedule": 1, "output.update": 1, "output.emit": 1}
ATTENTION = {"target.metadata.attention": 1}
V1 = (
    ENGINE
    | ATTENTION
    | {
        "target.input_prep": 2,
        "target.metadata": 1,
        "target.forward": 1,
        "sample": 2,
        "postprocess": 1,
    }
)
V1_DFLASH = V1 | {
    "draft.propose": 1,
    "draft.input_prep": 1,
    "draft.context_kv": 1,
    "draft.metadata": 1,
    "draft.forward": 2,
}
# Three tokens one after the other: three passes of the drafter, each with its metadata and its sampling.
V1_IN_TURN = V1 | {"draft.propose": 1, "draft.input_prep": 4, "draft.metadata": 3, "draft.forward": 6}
V1_NGRAM = V1 | {"draft.propose": 1, "draft.forward": 1}
V2 = (
    ENGINE
    | ATTENTION
    | {
        "target.input_prep": 2,
        "target.metadata": 1,
        "target.forward": 1,
        "sample": 1,
        "postprocess": 1,
        "draft.propose": 1,
        "draft.input_prep": 1,
        "draft.context_kv": 1,
        "draft.metadata": 2,
        "draft.forward": 1,
    }
)
KINDS = {"STEADY", "PREFILL", "MIXED", "EMPTY"}


@dataclass(frozen=True)
class Case:
    """A server, the calls per steady cycle of each span but the waits, and the kinds of cycle that must occur."""

    name: str
    configuration: dict[str, Any]
    calls: dict[str, int]
    kinds: set[str] = field(default_factory=lambda: KINDS)
    tokens: int = 48
    runner: str = "V1"

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted."""
        return self.configuration["method"] is not None

    @property
    def repeatable(self) -> bool:
        """Whether a greedy stream is the same each time."""
        return "acceptance" not in self.configuration and "target" not in self.configuration


CASES = [
    Case("sync", USUAL, V1_DFLASH),
    Case("async", USUAL | {"async_scheduling": True}, V1_DFLASH, KINDS | {"GHOST"}),
    Case("none", {"method": None, "extra_args": ("--api-server-count", "2")}, V1),
    Case("ngram", {"method": "ngram"}, V1_NGRAM, KINDS | {"DRAFT_SKIPPED"}),
    Case("draft_model", {"method": "draft_model"}, V1_IN_TURN),
    Case("nemotron", USUAL | {"target": "nemotron"}, V1_DFLASH | {"target.metadata.mamba": 2}),
    Case("V2-dflash", USUAL | {"runner": "V2", "async_scheduling": True}, V2, tokens=12, runner="V2"),
    Case("V2-dspark", USUAL | {"method": "dspark", "runner": "V2"}, V2, tokens=12, runner="V2"),
    Case("eagle3", {"method": "eagle3"}, V1_IN_TURN),
]
ELSEWHERE = {"none"}
"""Servers whose sockets lie in a directory of their own."""


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    """One configuration after the other, so that each server is started once."""
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def server(case: Case, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> CpuServer:
    """The configuration's server, warmed up: prompts are cached and functions compiled."""
    elsewhere = {"SPANTRACE_DIR": str(tmp_path_factory.mktemp("elsewhere"))} if case.name in ELSEWHERE else {}
    server = serve(**case.configuration, env=elsewhere)
    server.complete(prompts(4), max_tokens=case.tokens)
    return server


def prompts(streams: int) -> tuple[str, ...]:
    """As many different prompts as streams."""
    from cpu_server.client import PROMPTS

    return PROMPTS[:streams]


@pytest.mark.parametrize("streams", [1, 4])
def test_counts_equal_vllm(case: Case, server: CpuServer, streams: int, tmp_path: Path) -> None:
    def run() -> None:
        """One stream; or four that go on until all are in one batch, beside one whose client hangs up in the middle."""
        if streams == 1:
            server.complete(prompts(1), case.tokens)
            return
        with abandoned(server), server.load(streams, case.tokens) as answered:
            wait_until(lambda: server.metrics()["vllm:num_requests_running"] >= streams, "all streams at once")
        assert answered.errors == []

    before = server.speculation()
    recording = record(server, tmp_path / "r.spantrace", run)
    grown = server.speculation() - before
    assert_clean(recording)
    assert recording.header["left_out"]["partial"] == 0
    assert (grown.drafts > 0) == case.speculates
    counted = recording.cycles
    assert counted.drafting.sum() == grown.drafts
    assert counted.drafted.sum() == grown.drafted
    assert tuple(counted.accepted.sum(axis=0)) == grown.accepted
    # Whether the client that hangs up meets all the others is the schedule's choice.
    assert counted.batch.max() in ((1,) if streams == 1 else (streams, streams + 1))


@contextmanager
def abandoned(server: CpuServer) -> Iterator[None]:
    """A long request that is being answered until the block ends, which hangs up."""
    body = {"model": server.model, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        assert connection.getresponse().read(16)
        yield


def test_every_span_is_there(case: Case, server: CpuServer, tmp_path: Path) -> None:
    path = tmp_path / "r.spantrace"
    with live(server, path, *MANY, "--warmup", "0") as running:
        for _ in range(10 if "GHOST" in case.kinds else 1):
            server.complete(prompts(1), max_tokens=9)
        with server.load(1, max_tokens=30 * case.tokens):
            running.has(cycles=running.steps() + 4)
            for tokens in (2, 2, case.tokens):
                server.complete(prompts(4), max_tokens=tokens)
        running.settled()
    recording = load(path)
    assert_clean(recording)
    assert recording.header["server"]["runner"] == case.runner
    assert recording.header["server"]["method"] == case.configuration["method"]
    assert case.kinds <= kinds(recording).keys()
    assert typical_calls(recording) == case.calls
    # With async scheduling, a turn that only fills the queue waits for nothing.
    assert np.median(recording.calls("output.wait")) > 0


def typical_calls(recording: Recording) -> dict[str, int]:
    """How often a steady cycle enters each span, waits aside: the median."""
    steady = recording.of_kind(Kind.STEADY)
    medians = {name: int(np.median(steady.calls(name))) for name in SPAN_NAMES if name not in WAITS}
    return {name: calls for name, calls in medians.items() if calls}


def test_load_equals_what_the_api_server_observed(
    case: Case, server: CpuServer, witness: AskWitness, tmp_path: Path
) -> None:
    path = tmp_path / "r.spantrace"
    with server.load(4, max_tokens=case.tokens):
        code, said = LiveRecording(server, path, "--cycles", str(case.tokens), "--warmup", "0").ended()
    assert code == 0, said
    server.speculation()
    recording = load(path)
    assert_clean(recording)
    counted = recording.cycles
    rows = np.column_stack([counted.drafting, counted.drafted.sum(axis=1), counted.accepted])
    recorded = rows[counted.drafting > 0].tolist()
    assert bool(recorded) == case.speculates
    assert is_run(recorded, witness(server).observed())


def is_run(part: list[list[int]], whole: list[list[int]]) -> bool:
    """Whether `part` appears in `whole` without a gap."""
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))


@pytest.mark.parametrize("streams", [1, 4])
def test_greedy_streams_stay_the_same(case: Case, server: CpuServer, streams: int, tmp_path: Path) -> None:
    if not case.repeatable:
        pytest.skip("not repeatable without a recorder either")
    assert_same_tokens(server, prompts(streams), tmp_path / "r.spantrace", tokens=96, cycles=40)
