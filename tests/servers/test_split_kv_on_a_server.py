"""A drafter's server with the split attention: on a CPU no call is its, and being switched does no harm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

ID = "split-kv-3d"


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """Runner V2 with a DSpark drafter, whose attention here is vLLM's for the CPU, and whose drafts are verified."""
    return serve(method="dspark", runner="V2", optimize=ID)


def state(cli: Cli, server: CpuServer) -> dict[str, Any]:
    """What `spantrace optimizations` says of it."""
    said = cli("optimizations", f":{server.port}", "--format", "json")
    assert said.returncode == 0, said.stderr
    return next(one for one in json.loads(said.stdout)["optimizations"] if one["id"] == ID)


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
