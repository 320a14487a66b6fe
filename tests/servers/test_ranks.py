"""A server with two ranks: every rank is recorded, cycles match, the slow rank is named, switches are everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import USUAL
from live import LONG_S, Witness, assert_clean, record, wait_until
from quiet import judged

from analyzers.ranks import rank_skew
from spantrace.control import ask
from spantrace.ranks import of_rank, ranks, slowest
from spantrace.recording import Recording
from spantrace.spans import SPAN_ID, Kind, Track
from spantrace.vllm_adapter.servers import find

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

pytestmark = pytest.mark.timed

CHOSEN = "uniform-decode-metadata"
DELAY_MS = 15.0
OF_A_WORKER = (
    "target.input_prep",
    "target.metadata",
    "target.metadata.attention",
    "target.metadata.mamba",
    "target.forward",
    "sample",
    "postprocess",
    "draft.propose",
    "draft.forward",
    "communication",
)


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """A hybrid target and its drafter on two ranks, a core for each, with an optimization on."""
    two = {"extra_args": ("-tp", "2"), "env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}}
    server = serve(**USUAL, target="nemotron", optimize=CHOSEN, **two)
    server.complete(prompts(4), max_tokens=48)
    return server


def prompts(streams: int) -> tuple[str, ...]:
    """As many different prompts as streams."""
    from cpu_server.client import PROMPTS

    return PROMPTS[:streams]


def forwards(recording: Recording, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """When target.forward begins and ends on a rank in each cycle, ns; one call a cycle."""
    spans = of_rank(recording, rank, alone=True).spans
    at = (spans.name == SPAN_ID["target.forward"]) & (spans.track == Track.HOST)
    order = np.argsort(spans.cycle[at])
    assert spans.cycle[at][order].tolist() == list(range(len(recording.cycles)))
    return spans.start[at][order], spans.end[at][order]


def test_all_ranks_are_recorded_and_their_cycles_match(server: CpuServer, tmp_path: Path) -> None:
    before = server.speculation()
    recording = record(server, tmp_path / "r.spantrace", lambda: server.complete(prompts(4), 48))
    grown = server.speculation() - before
    assert_clean(recording)
    assert recording.header["left_out"]["partial"] == 0
    assert recording.cycles.drafting.sum() == grown.drafts
    assert tuple(recording.cycles.accepted.sum(axis=0)) == grown.accepted
    assert list(ranks(recording.header)) == [0, 1]
    assert [one["role"] for one in recording.header["processes"]] == ["worker", "worker", "engine"]
    steady = recording.of_kind(Kind.STEADY)
    for name in OF_A_WORKER:
        first, second = (of_rank(steady, rank, alone=True).calls(name) for rank in (0, 1))
        assert np.array_equal(first, second), name
        assert first.min() > 0, name
    (begin, end), (other_begin, other_end) = (forwards(steady, rank) for rank in (0, 1))
    # They reduce together in it, so that no rank can leave it before the other one has come.
    assert (begin < other_end).all()
    assert (other_begin < end).all()


def test_what_is_on_is_on_on_every_rank_and_counted_on_each(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "r.spantrace"
    recording = record(server, path, lambda: server.complete(prompts(2), 48))
    each = [recording.header["processes"][number]["optimizations"] for number in ranks(recording.header).values()]
    assert [[one["id"] for one in counted] for counted in each] == [[CHOSEN]] * 2
    hits = [counted[0]["hits"] for counted in each]
    assert hits[0] == hits[1] > 0
    printed = cli("report", str(path)).stdout
    assert f"rank 0 {hits[0]:,}, rank 1 {hits[1]:,}" in " ".join(printed.split())


@contextmanager
def held_up(seer: Witness, pid: int) -> Iterator[None]:
    """Each sampling of one process takes longer."""
    seer.ask(pid, "hold_up_samples", DELAY_MS / 1e3)
    try:
        yield
    finally:
        seer.ask(pid, "hold_up_samples", 0.0)


@pytest.mark.parametrize("slow", [1, 0])
def test_a_rank_that_is_held_up_is_named(
    server: CpuServer, witness: AskWitness, cli: Cli, slow: int, tmp_path: Path
) -> None:
    path, seer = tmp_path / "r.spantrace", witness(server)
    workers = find(f":{server.port}", Path(server.environment["SPANTRACE_DIR"])).of_role("worker")
    (pid,) = [member.pid for member in workers if member.place == f"TP{slow}"]

    def measure() -> None:
        with held_up(seer, pid):
            recording = record(server, path, lambda: server.complete(prompts(2), 192), "--force")
        assert_clean(recording)
        assert slowest(recording) == slow
        found = rank_skew(recording)
        assert found is not None
        assert found.longest == "sample"
        assert found.longer == pytest.approx(DELAY_MS, rel=0.3)
        assert found.behind is not None
        assert found.behind > DELAY_MS / 2
        (sample,) = [row for row in found.rows if row.name == "sample"]
        assert sample.critical == slow
        assert sample.critical_share is not None
        assert sample.critical_share > 0.9

    judged(measure)
    assert f"RANK {slow} SLOWEST" in cli("report", str(path)).stdout
    assert json.loads(cli("report", str(path), "--format", "json").stdout)["rank"] == slow
    assert "SLOWEST" not in cli("report", str(path), "--rank", "0").stdout
    every = cli("report", str(path), "--rank", "all").stdout
    assert "\nrank 0 " in every
    assert "\nrank 1 " in every


def test_what_is_explained_is_the_slow_rank_alone(server: CpuServer, witness: AskWitness, cli: Cli) -> None:
    directory = server.environment["SPANTRACE_DIR"]
    workers = find(f":{server.port}", Path(directory)).of_role("worker")
    (pid,) = [member.pid for member in workers if member.place == "TP1"]
    sampled = ("--span", "sample", "--only", "host", "--samples", "200", "--dir", directory)
    with held_up(witness(server), pid), server.load(2):
        done = cli("explain", f":{server.port}", *sampled, timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2" in done.stdout
    assert "thread>" not in done.stdout
    took = re.search(r"sample {2}takes ([\d.]+) ms of a cycle", done.stdout)
    assert took
    assert DELAY_MS < float(took[1]) < 2 * DELAY_MS


def test_what_one_rank_cannot_apply_is_on_on_none(serve: Serve, tmp_path: Path) -> None:
    marker = tmp_path / "refused"
    two = {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "SPANTRACE_WITNESS_REFUSES": str(marker)}
    server = serve(method=None, target="nemotron", optimize=CHOSEN, extra_args=("-tp", "2"), env=two)
    place = Path(server.environment["SPANTRACE_DIR"])
    members = [one for one in find(f":{server.port}", place).members if one.role in ("engine", "worker")]
    assert len(members) == 3
    assert marker.exists()

    def states() -> list[dict[str, Any]]:
        return [ask(place, one.pid, {"type": "optimizations"}) for one in members]

    wait_until(lambda: not any(one["on"] or one["waiting"] for one in states()), "all of them to be off")
    whys = {one["refused"].get(CHOSEN) for one in states()}
    assert whys == {"nothing was applied, because the witness refuses it in this process"}
    server.stop()
