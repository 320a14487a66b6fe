"""A DSpark drafter's server with the split attention and the Markov chain, of which only the latter fires on a CPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from conftest import DSPARK

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

pytestmark = pytest.mark.long

ID, CHAIN = "split-kv-3d", "markov-chain"


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """Runner V2 with a DSpark drafter, whose attention here is vLLM's for the CPU, and whose drafts are verified."""
    return serve(**DSPARK)


def state(cli: Cli, server: CpuServer, chosen: str = ID) -> dict[str, Any]:
    """What `spantrace optimizations` says of one."""
    said = cli("optimizations", f":{server.port}", "--format", "json")
    assert said.returncode == 0, said.stderr
    return next(one for one in json.loads(said.stdout)["optimizations"] if one["id"] == chosen)


def test_it_goes_in_and_out_of_a_server_whose_tokens_stay_the_same(server: CpuServer, cli: Cli) -> None:
    from cpu_server.client import PROMPTS

    tokens = [server.complete(PROMPTS[:1], max_tokens=12)]
    told = state(cli, server)
    assert (told["state"], told["switched"]) == ("on", "live")
    for way, expected in (("--off", "applies"), ("--on", "on")):
        switched = cli("toggle", f":{server.port}", way, ID)
        assert switched.returncode == 0, switched.stderr
        assert state(cli, server)["state"] == expected
        tokens.append(server.complete(PROMPTS[:1], max_tokens=12))
    assert tokens[0] == tokens[1] == tokens[2]
    told = state(cli, server)
    assert (told["hits"], told["fallbacks"], told["errors"]) == (0, 0, 0)


def test_the_chain_drafts_what_the_loop_drafts_on_every_call(server: CpuServer, witness: AskWitness, cli: Cli) -> None:
    from cpu_server.client import PROMPTS

    seer = witness(server)
    (worker,) = seer.workers
    before = state(cli, server, CHAIN)
    assert (before["state"], before["switched"]) == ("on", "at start")
    seer.ask(worker, "compare_drafts")
    try:
        server.complete(PROMPTS[:1], max_tokens=8)
        server.complete(PROMPTS[:3], max_tokens=8)
        drafts = seer.ask(worker, "compared_drafts")
    finally:
        seer.ask(worker, "mend_drafts")
    assert [loop for loop, chain in drafts if loop != chain] == []
    assert len({tuple(row) for loop, _ in drafts for row in loop}) > 3
    after = state(cli, server, CHAIN)
    assert after["hits"] - before["hits"] == len(drafts) > 3
    assert (after["fallbacks"], after["errors"]) == (0, 0)


def test_the_chain_is_not_switched_while_the_server_runs(server: CpuServer, cli: Cli) -> None:
    refused = cli("toggle", f":{server.port}", "--off", CHAIN)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{CHAIN} cannot be switched live: what it replaces is captured in CUDA graphs" in refused.stderr
    assert state(cli, server, CHAIN)["state"] == "on"
