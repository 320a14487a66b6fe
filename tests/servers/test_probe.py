"""`spantrace probe` on real servers: an optimization that is right, one that is wrong, and weights that hide both."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from conftest import HYBRID

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

pytestmark = pytest.mark.long

CHOSEN = "uniform-decode-metadata"
SIZE = ("--prompts", "3", "--prompt-tokens", "40", "--tokens", "24")


def served(serve: Serve, **weights: Any) -> CpuServer:
    """The hybrid target with these options of its random weights; beside a drafter its CPU kernels misread states."""
    extra = ["--model-loader-extra-config", json.dumps(weights)] if weights else []
    return serve(method=None, target="nemotron", optimize=CHOSEN, extra_args=tuple(extra))


@pytest.fixture(scope="module")
def whole(serve: Serve) -> CpuServer:
    return served(serve)


@pytest.fixture(scope="module")
def zeroed(serve: Serve) -> CpuServer:
    return served(serve, zero_attention=0)


def probe(cli: Cli, whole: CpuServer, zeroed: CpuServer, *more: str) -> subprocess.CompletedProcess[str]:
    return cli(
        "probe", f":{whole.port}", "--zeroed", f":{zeroed.port}", "--optimize", CHOSEN, *SIZE, *more, timeout=300
    )


def said(done: subprocess.CompletedProcess[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All that a probe found, and what of it is of the optimization."""
    found = json.loads(done.stdout)
    return found, found["optimizations"][CHOSEN]


def test_a_right_optimization_passes_and_the_server_has_on_what_it_had_on(
    whole: CpuServer, zeroed: CpuServer, cli: Cli
) -> None:
    done = probe(cli, whole, zeroed, "--format", "json")
    assert done.returncode == 0, done.stderr
    found, one = said(done)
    assert found["zeroed_changed"] == 3
    assert (one["outcome"], one["answers"], one["differences"]) == ("pass", 6, [])
    told = json.loads(cli("optimizations", f":{whole.port}", "--format", "json").stdout)
    assert next(item["state"] for item in told["optimizations"] if item["id"] == CHOSEN) == "on"


def test_a_wrong_optimization_fails(whole: CpuServer, zeroed: CpuServer, witness: AskWitness, cli: Cli) -> None:
    seer = witness(whole)
    (worker,) = seer.workers
    seer.ask(worker, "spoil_builds")
    try:
        done = probe(cli, whole, zeroed, "--format", "json")
    finally:
        seer.ask(worker, "mend_spoilt_builds")
    assert done.returncode == 1, done.stderr
    _, one = said(done)
    assert one["outcome"] == "fail"
    assert all(difference["gap"] > one["noise"] for difference in one["differences"][:1])
    table = probe(cli, whole, zeroed)
    assert table.returncode == 0, "what was wrong is gone with the switch"
    assert "PASS" in table.stdout


def test_what_cannot_be_probed_is_one_sentence(whole: CpuServer, serve: Serve, cli: Cli) -> None:
    unbroken = probe(cli, whole, whole)
    assert (unbroken.returncode, unbroken.stdout) == (2, "")
    assert unbroken.stderr.startswith(f"spantrace: process {whole.pid} is not the broken model; start it with ")
    synthetic = serve(**HYBRID)
    refused = probe(cli, synthetic, synthetic)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("spantrace: the server accepts drafts whatever they are; ")


def test_it_is_void_with_dummy_weights(serve: Serve, cli: Cli) -> None:
    done = probe(
        cli, served(serve, weights="dummy"), served(serve, weights="dummy", zero_attention=0), "--format", "json"
    )
    assert done.returncode == 3, done.stderr
    found, one = said(done)
    assert (found["zeroed_changed"], one["outcome"]) == (0, "void")
    assert one["why"].startswith("a zeroed attention layer does not show in the tokens")
