"""Recordings that start and stop, side by side and one after another, on one server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from conftest import USUAL
from live import MANY, LiveRecording, Witness, assert_clean, live, record, wait_until

from spantrace.frames import Frame, unpack_rows
from spantrace.loading import load
from spantrace.sampling import RUN
from spantrace.spans import Kind

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

WORKERS = (
    "target.input_prep",
    "target.metadata",
    "target.metadata.attention",
    "target.forward",
    "sample",
    "postprocess",
    "draft.propose",
    "draft.input_prep",
    "draft.context_kv",
    "draft.metadata",
    "draft.forward",
)
"""The spans of a worker's process, which are known of cycles in detail only."""
AT = {"schedule": 2, "update": 2, "execute": 2, "idle": 1, "graph": 1}
"""Where a fact of each kind holds its time."""


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """The usual server."""
    return serve(**USUAL)


@pytest.fixture
def seer(server: CpuServer, witness: AskWitness) -> Witness:
    """The server's witness, that knows how vLLM is without hooks."""
    seer = witness(server)
    seer.remember()
    return seer


def test_ten_recordings_are_complete_and_leave_vllm_as_it_was(server: CpuServer, seer: Witness, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.spantrace" for number in range(10)]
    with server.load(4) as requests:
        for path in paths:
            with live(server, path, *MANY) as running:
                assert len(seer.changed()) > 40
                running.has(cycles=10)
            assert seer.changed() == []
    assert requests.errors == []
    for path in paths:
        assert_clean(load(path))
    assert sorted(tmp_path.iterdir()) == paths


def test_one_run_of_cycles_in_five_is_in_detail_and_all_are_counted_and_timed(
    server: CpuServer, seer: Witness, tmp_path: Path
) -> None:
    def run() -> None:
        with server.load(2) as load:
            wait_until(lambda: load.tokens > 1000, "tokens of some 200 cycles")

    before = server.speculation()
    recording = record(server, tmp_path / "r.spantrace", run, "--detail-every", "5")
    grown = server.speculation() - before
    assert seer.changed() == []
    assert_clean(recording)
    cycles = recording.cycles
    assert (cycles.drafting.sum(), cycles.drafted.sum()) == (grown.drafts, grown.drafted)
    assert tuple(cycles.accepted.sum(axis=0)) == grown.accepted
    assert len(cycles) > 120
    assert 0.1 < cycles.detail.mean() < 0.25
    steps = np.pad(cycles.detail[cycles.step > 0], 1)
    lengths = np.diff(np.flatnonzero(np.diff(steps.astype(int))))[::2].tolist()
    assert set(lengths[1:-1]) <= {RUN - 2, RUN - 1}, "without the first of each run, and the last before another step"
    padded = np.pad(cycles.detail, 1)
    neither = ~(padded[:-2] | cycles.detail | padded[2:])
    steady = cycles.kind == Kind.STEADY
    for name in ("cycle", "schedule", "output.update"):
        assert (recording.calls(name)[steady] > 0).all(), name
    for name in WORKERS:
        assert (recording.calls(name)[steady & cycles.detail] > 0).all(), name
        assert not recording.calls(name)[neither].any(), name


def test_how_many_cycles_are_in_detail_is_up_to_how_many_there_will_be(
    server: CpuServer, cli: Cli, tmp_path: Path
) -> None:
    asked = {"few": ["--cycles", "20"], "open": ["--seconds", "0.5"], "nvtx": ["--seconds", "0.5", "--nvtx"]}
    with server.load(2):
        for name, options in asked.items():
            done = cli("record", f":{server.port}", "-o", str(tmp_path / name), "--warmup", "0", *options)
            assert done.returncode == 0, done.stderr
    loaded = {name: load(tmp_path / name) for name in asked}
    assert {name: one.header["options"]["detail_every"] for name, one in loaded.items()} == {
        "few": 1,
        "open": 5,
        "nvtx": 1,
    }
    backends = {one.header["server"]["draft_attention_backend"] for one in loaded.values()}
    assert backends == {"CPU_ATTN"}, "a recording that ends before the first frames are sent says it too"
    assert loaded["few"].cycles.detail.all()
    assert loaded["nvtx"].cycles.detail.all()


def test_a_second_recorder_is_told_and_the_first_goes_on(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "first.spantrace"
    with server.load(2), live(server, path, *MANY) as first:
        first.has(cycles=10)
        second = cli("record", f":{server.port}", "-o", str(tmp_path / "second.spantrace"))
        assert second.returncode == 2
        assert "already being recorded" in second.stderr
        first.has(cycles=first.steps() + 20)
    assert_clean(load(path))
    assert list(tmp_path.iterdir()) == [path]


def test_ctrl_c_keeps_what_was_recorded(server: CpuServer, tmp_path: Path) -> None:
    with server.load(1):
        running = LiveRecording(server, tmp_path / "r.spantrace", *MANY, "--warmup", "5").has(cycles=20)
        code, said = running.interrupt()
    assert (code, said.splitlines()[0]) == (0, "stopped; what was recorded is kept")
    recording = load(tmp_path / "r.spantrace")
    assert_clean(recording)
    assert len(recording.cycles) >= 15
    assert not running.part.exists()


def test_ctrl_c_before_the_first_cycle_leaves_no_file(server: CpuServer, tmp_path: Path) -> None:
    code, said = LiveRecording(server, tmp_path / "r.spantrace").armed().interrupt()
    assert code == 130
    assert "stopped; nothing was recorded" in said
    assert list(tmp_path.iterdir()) == []


def test_an_idle_server_is_called_idle(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    done = cli("record", f":{server.port}", "--idle-timeout", "1", "-o", str(tmp_path / "r.spantrace"))
    assert done.returncode == 3
    assert "no cycle in 1 s: the server is idle" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_requests_while_a_recording_stops_leaves_nothing_in_the_next(
    server: CpuServer, tmp_path: Path
) -> None:
    with live(server, tmp_path / "1.spantrace", *MANY):
        server.complete(max_tokens=16)
        server.speculation()
    began = time.perf_counter_ns()
    with live(server, tmp_path / "2.spantrace", *MANY) as second:
        server.complete(max_tokens=16)
        assert earliest(second.has(cycles=5).frames()) > began


def test_a_hooked_function_blocked_while_a_recording_stops_leaves_nothing_in_the_next(
    server: CpuServer, seer: Witness, tmp_path: Path
) -> None:
    with server.load(1):
        try:
            with live(server, tmp_path / "1.spantrace", *MANY) as first:
                first.has(cycles=5)
                seer.ask(seer.engine, "hold")
                wait_until(lambda: seer.ask(seer.engine, "reached"), "the engine in Scheduler.schedule")
            began = time.perf_counter_ns()
            with live(server, tmp_path / "2.spantrace", *MANY) as second:
                seer.ask(seer.engine, "release")
                assert earliest(second.has(cycles=10).frames()) > began
        finally:
            seer.ask(seer.engine, "release")
    assert seer.changed() == []
    for name in ("1.spantrace", "2.spantrace"):
        assert_clean(load(tmp_path / name))


def earliest(frames: list[Frame]) -> int:
    """The earliest start of any row and any fact, in CLOCK_MONOTONIC nanoseconds."""
    return min(moments(frames))


def moments(frames: list[Frame]) -> Iterator[int]:
    """The start of every row and the time of every fact."""
    for frame in frames:
        if frame["type"] == "rows":
            yield from unpack_rows(frame)[:, 1].tolist()
        for fact in frame.get("facts", ()):
            yield fact[AT[fact[0]]]
