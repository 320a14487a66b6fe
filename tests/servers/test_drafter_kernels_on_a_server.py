"""A DFlash drafter's server whose contexts and blocks are made by one launch each, beside what vLLM makes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import optimized
from spantrace.vllm_adapter.launch import installed_version

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

pytestmark = pytest.mark.long

CONTEXT, HEADS = "context-norm-rope", "qk-norm-rope"
CLOSE = 2e-5
"""vLLM's kernels for the CPU add up in another order than those for a GPU."""
LIVE = {name for name in (CONTEXT, HEADS) if optimized.discover()[name].is_live(installed_version())}


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """Runner V2, whose Triton kernels are interpreted; drafts are verified."""
    return serve(method="dflash", runner="V2", optimize=f"{CONTEXT},{HEADS}")


def state(cli: Cli, server: CpuServer, name: str) -> dict[str, Any]:
    """What `spantrace optimizations` says of one."""
    said = cli("optimizations", f":{server.port}", "--format", "json")
    assert said.returncode == 0, said.stderr
    return next(one for one in json.loads(said.stdout)["optimizations"] if one["id"] == name)


def test_every_context_and_every_layer_of_a_block_is_a_hit_and_what_vllm_makes_of_it(
    server: CpuServer, witness: AskWitness, cli: Cli
) -> None:
    from cpu_server.client import PROMPTS

    seer = witness(server)
    (worker,) = seer.workers
    before = {name: state(cli, server, name) for name in (CONTEXT, HEADS)}
    assert {one["state"] for one in before.values()} == {"on"}
    assert {name for name, one in before.items() if one["switched"] == "live"} == LIVE
    seer.ask(worker, "compare_models")
    try:
        server.complete(PROMPTS[:1], max_tokens=8)
        server.complete(PROMPTS[:3], max_tokens=8)
        apart = seer.ask(worker, "compared_models")
    finally:
        seer.ask(worker, "mend_models")
    for name, compared in ((CONTEXT, apart["contexts"]), (HEADS, apart["blocks"])):
        after = state(cli, server, name)
        assert len(compared) > 3
        assert max(compared) < CLOSE
        assert after["hits"] - before[name]["hits"] == len(compared)
        assert (after["fallbacks"], after["errors"]) == (0, 0)


@pytest.mark.parametrize("name", [CONTEXT, HEADS])
def test_only_what_no_graph_may_hold_is_switched_while_the_server_runs(server: CpuServer, cli: Cli, name: str) -> None:
    from cpu_server.client import PROMPTS

    off = cli("toggle", f":{server.port}", "--off", name)
    if name not in LIVE:
        assert (off.returncode, off.stdout) == (2, "")
        assert f"{name} cannot be switched live: what it replaces is captured in CUDA graphs" in off.stderr
        assert state(cli, server, name)["state"] == "on"
        return
    assert off.returncode == 0, off.stderr
    assert state(cli, server, name)["state"] == "applies"
    tokens = server.complete(PROMPTS[:1], max_tokens=8)
    assert cli("toggle", f":{server.port}", "--on", name).returncode == 0
    assert server.complete(PROMPTS[:1], max_tokens=8) == tokens
    said = state(cli, server, name)
    assert (said["state"], said["fallbacks"], said["errors"]) == ("on", 0, 0)
    assert said["hits"] > 0
