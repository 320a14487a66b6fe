"""A server with two engines: both are listed, recorded apart by their pid, and together into a file each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import USUAL
from live import MANY, LiveRecording, assert_clean, wait_until

from spantrace.journal import journal_path
from spantrace.loading import load
from spantrace.recording import Recording

if TYPE_CHECKING:
    from conftest import Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

# Two engines fill two cores: what runs beside them is starved.
pytestmark = pytest.mark.timed

ENGINES = ("dp0", "dp1")


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """Two engines, a core for each."""
    two = ("-dp", "2", "--api-server-count", "1")
    return serve(**USUAL, extra_args=two, env={"VLLM_CPU_OMP_THREADS_BIND": "0|1"})


def listed(cli: Cli, server: CpuServer) -> list[dict[str, Any]]:
    """What `spantrace ps` says of the server's processes."""
    said = cli("ps", "--format", "json")
    (found,) = [one for one in json.loads(said.stdout)["servers"] if one["root"] == server.pid]
    return list(found["members"])


def engines(cli: Cli, server: CpuServer) -> list[int]:
    """The pids of the engines, in order of their number."""
    found = {one["title"].split()[0]: one["pid"] for one in listed(cli, server) if one["role"] == "engine"}
    return [found[f"VLLM::EngineCore_{name.upper()}"] for name in ENGINES]


def test_both_engines_are_listed_with_their_workers(server: CpuServer, cli: Cli) -> None:
    pids = engines(cli, server)
    assert len(set(pids)) == 2
    workers = [one for one in listed(cli, server) if one["role"] == "worker"]
    assert {one["parent"] for one in workers} <= set(pids)
    assert all(one["recordable"] for one in listed(cli, server) if one["role"] in ("engine", "worker"))
    lines = [line.split()[:2] for line in cli("ps").stdout.splitlines() if line.startswith("  engine DP")]
    assert lines == [["engine", "DP0"], ["engine", "DP1"]]


def test_one_engine_is_recorded_by_its_pid(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    pid, path = engines(cli, server)[1], tmp_path / "one.spantrace"
    with server.load(1, max_tokens=48):
        said = cli("record", str(pid), "--cycles", "10", "--warmup", "0", "-o", str(path))
    assert said.returncode == 0, said.stderr
    recording = load(path)
    assert_clean(recording)
    assert pid in {one["pid"] for one in recording.header["processes"]}
    assert engines(cli, server)[0] not in {one["pid"] for one in recording.header["processes"]}


def test_both_are_recorded_together_and_hold_all_that_vllm_counts(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    paths = [tmp_path / f"both-{name}.spantrace" for name in ENGINES]
    server.speculation()
    before = server.speculation()
    running = LiveRecording(server, tmp_path / "both.spantrace", *MANY, "--warmup", "0")
    wait_until(lambda: all(has_begun(path) for path in paths), "both recordings' start")
    server.complete(prompts(), max_tokens=48)
    grown = server.speculation() - before
    code, said = running.interrupt()
    assert code == 0, said
    recordings = [load(path) for path in paths]
    for recording, pid in zip(recordings, engines(cli, server), strict=True):
        assert_clean(recording)
        assert pid in {one["pid"] for one in recording.header["processes"]}
        assert steps(recording) > 0
    assert sum(int(one.cycles.drafting.sum()) for one in recordings) == grown.drafts
    assert sum(int(one.cycles.drafted.sum()) for one in recordings) == grown.drafted
    assert "dp0: " in said
    assert "dp1: " in said


def has_begun(path: Path) -> bool:
    """Whether every process of an engine records into the journal of that file."""
    from spantrace.frames import Decoder

    part = journal_path(path)
    frames = list(Decoder().feed(part.read_bytes())) if part.exists() else []
    return any(frame["type"] == "armed" and frame["about"]["role"] == "engine" for frame in frames)


def steps(recording: Recording) -> int:
    """How many cycles ran a step."""
    return int((recording.cycles.scheduled_tokens > 0).sum())


def prompts() -> tuple[str, ...]:
    """Four different prompts."""
    from cpu_server.client import PROMPTS

    return PROMPTS[:4]


def test_an_engine_whose_file_is_there_keeps_both_from_being_recorded(
    server: CpuServer, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "r-dp1.spantrace").write_text("mine")
    said = cli("record", f":{server.port}", "--cycles", "5", "-o", str(tmp_path / "r.spantrace"))
    assert said.returncode == 2
    assert "r-dp1.spantrace exists" in said.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["r-dp1.spantrace"]
