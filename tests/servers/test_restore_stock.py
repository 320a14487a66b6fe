"""A real V2 server is switched to the stock of a fix and back, with no graph to skip for, and to what repeats less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import USUAL
from live import Witness, assert_clean, record, wait_until

from spantrace.loading import load

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

FIX, STOCK_ID = "skip-draft-rebuild", "stock-skip-draft-rebuild"
PADDING = "bounded-padding"
SAMPLING = "unchanged-sampling"
SPECULATORS = "vllm.v1.worker.gpu.spec_decode."
SEAMS = [
    f"{SPECULATORS}dflash.speculator:DFlashSpeculator:_num_graph_context_tokens",
    f"{SPECULATORS}dflash.speculator:dispatch_cg_and_sync_dp",
    f"{SPECULATORS}speculator:DraftModelSpeculator:_prepare_eplb_forward",
]


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """The V2 runner with DSpark, whose kernels run in the interpreter and whose drafts in no graph."""
    found = serve(**USUAL | {"method": "dspark", "runner": "V2"})
    found.complete(max_tokens=8)
    return found


def states(cli: Cli, server: CpuServer) -> dict[str, dict[str, Any]]:
    said = cli("optimizations", f":{server.port}", "--format", "json")
    assert said.returncode == 0, said.stderr
    return {one["id"]: one for one in json.loads(said.stdout)["optimizations"]}


def test_it_is_switched_to_stock_and_back_under_load(
    server: CpuServer, witness: AskWitness, cli: Cli, tmp_path: Path
) -> None:
    seer = witness(server)
    seer.remember()
    assert states(cli, server)[FIX]["state"] == "already upstream"
    assert states(cli, server)[STOCK_ID]["state"] == "applies"
    with server.load(1) as requests:
        on = cli("toggle", f":{server.port}", "--restore-stock", FIX)
        assert on.returncode == 0, on.stderr
        assert f"{FIX} is restored to stock" in on.stdout
        assert "the build only" in " ".join(on.stdout.split())
        assert sorted(seer.changed()) == SEAMS
        wait_until(lambda: states(cli, server)[STOCK_ID]["fallbacks"], "a draft")
        assert states(cli, server)[STOCK_ID]["state"] == "on"
        off = cli("toggle", f":{server.port}", "--off", STOCK_ID, "--format", "json")
        assert off.returncode == 0, off.stderr
        assert seer.changed() == []
    assert requests.errors == []
    (said,) = json.loads(off.stdout)["optimizations"]
    assert (said["now"], said["hits"], said["errors"]) == ("off", 0, 0)
    assert said["fallbacks"] > 0
    assert states(cli, server)[STOCK_ID]["state"] == "applies"


@contextmanager
def on_under_load(server: CpuServer, seer: Witness, cli: Cli, name: str) -> Iterator[dict[str, Any]]:
    """With it on, and off again as the block ends; then holds what was said of it."""
    said: dict[str, Any] = {}
    seer.remember()
    with server.load(1) as requests:
        on = cli("toggle", f":{server.port}", "--on", name)
        assert on.returncode == 0, on.stderr
        yield said
        off = cli("toggle", f":{server.port}", "--off", name, "--format", "json")
        assert off.returncode == 0, off.stderr
        assert seer.changed() == []
    assert requests.errors == []
    (found,) = json.loads(off.stdout)["optimizations"]
    said |= found
    assert (said["now"], said["errors"]) == ("off", 0)
    assert states(cli, server)[name]["state"] == "applies"


def test_padding_that_is_there_is_not_written_again_under_load(
    server: CpuServer, witness: AskWitness, cli: Cli
) -> None:
    seer = witness(server)
    with on_under_load(server, seer, cli, PADDING) as said:
        assert f"{SPECULATORS}dflash.speculator:prepare_dflash_inputs" in seer.changed()
        wait_until(lambda: states(cli, server)[PADDING]["hits"] > 20, "steps of one request")
    assert said["hits"] > 20
    assert said["fallbacks"] > 0, "the first call of all"


def test_parameters_that_did_not_change_are_not_copied_again_under_load(
    server: CpuServer, witness: AskWitness, cli: Cli
) -> None:
    seer = witness(server)
    with on_under_load(server, seer, cli, SAMPLING) as said:
        sampler = "vllm.v1.worker.gpu.sample.sampler:Sampler"
        assert sorted(seer.changed()) == [f"{sampler}:add_request", f"{sampler}:apply_staged_writes"]
        wait_until(lambda: states(cli, server)[SAMPLING]["hits"] > 20, "steps without a new request")
        wait_until(lambda: states(cli, server)[SAMPLING]["fallbacks"] > 1, "a new request")
    assert said["hits"] > said["fallbacks"] > 1


def test_a_recording_counts_the_drafts_without_a_graph(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    assert cli("toggle", f":{server.port}", "--restore-stock", FIX).returncode == 0
    try:
        recording = record(server, tmp_path / "r.spantrace", lambda: server.complete(max_tokens=16))
    finally:
        assert cli("toggle", f":{server.port}", "--off", "all").returncode == 0
    assert_clean(recording)
    (counted,) = recording.header["optimizations"]
    assert (counted["id"], counted["hits"], counted["errors"]) == (STOCK_ID, 0, 0)
    assert set(counted["reasons"]) == {"the draft runs without a FULL graph"}
    told = cli("report", str(tmp_path / "r.spantrace"))
    assert f"{STOCK_ID} was on and never fired" in " ".join((told.stdout + told.stderr).split())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--on", FIX], f"{FIX}: vLLM 0.32.0 does this by itself"),
        (["--restore-stock", "keep-last-block"], "stock-keep-last-block: keep-last-block is known to be upstream in"),
    ],
)
def test_what_this_vllm_cannot_is_refused_and_nothing_changes(
    server: CpuServer, witness: AskWitness, cli: Cli, arguments: list[str], why: str
) -> None:
    seer = witness(server)
    seer.remember()
    refused = cli("toggle", f":{server.port}", *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"spantrace: {why}")
    assert refused.stderr.count("\n") == 1
    assert seer.changed() == []


def test_a_campaign_is_without_the_fix_in_stock_and_says_that_it_made_no_difference(
    server: CpuServer, cli: Cli, tmp_path: Path
) -> None:
    short = ("--repeats", "2", "--cycles", "12", "--warmup", "2", "--load", "none", "-o", str(tmp_path / "c"))
    with server.load(1):
        chosen = ("--optimize", "none", "--restore-stock", FIX)
        done = cli("ab", f":{server.port}", *chosen, *short, timeout=150)
    assert done.returncode == 0, done.stderr
    assert f"stock: {STOCK_ID} was on and never fired" in " ".join(done.stdout.split())
    on: dict[str, list[list[str]]] = {}
    for path in sorted((tmp_path / "c").glob("*.spantrace")):
        header = load(path).header
        on.setdefault(header["campaign"]["arm"], []).append([one["id"] for one in header["optimizations"]])
    assert on == {"stock": [[STOCK_ID]] * 2, "stock again": [[STOCK_ID]] * 2, FIX: [[]] * 2}
    assert states(cli, server)[STOCK_ID]["state"] == "applies"
