"""Servers that are started by `spantrace serve --optimize`, and choices that are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import HYBRID
from live import assert_clean, record

from spantrace.spans import SPAN_ID

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

CHOSEN, SHARED = "uniform-decode-metadata", "shared by a step's KV groups"
ADOPTION = Path(__file__).with_name("adopt_in_this_process.py")


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """The hybrid target with a DFlash drafter, and Mamba's metadata optimized."""
    return serve(**HYBRID)


def prompts(streams: int) -> tuple[str, ...]:
    """As many different prompts as streams."""
    from cpu_server.client import PROMPTS

    return PROMPTS[:streams]


def state_in(cli: Cli, target: str, chosen: str = CHOSEN) -> dict[str, Any]:
    """What `spantrace optimizations TARGET` says of one."""
    said = cli("optimizations", target, "--format", "json")
    assert said.returncode == 0, said.stderr
    return next(one for one in json.loads(said.stdout)["optimizations"] if one["id"] == chosen)


def test_it_has_hits_and_its_metadata_is_the_full_chains_on_every_build(
    server: CpuServer, witness: AskWitness, cli: Cli, tmp_path: Path
) -> None:
    seer, path = witness(server), tmp_path / "r.spantrace"
    (worker,) = seer.workers
    seer.ask(worker, "compare_builds")
    try:
        recording = record(server, path, lambda: (server.complete(prompts(1), 64), server.complete(prompts(4), 64)))
        builds, different = seer.ask(worker, "compared_builds")
    finally:
        seer.ask(worker, "mend_builds")
    assert_clean(recording)
    assert different == []
    (said,) = recording.header["optimizations"]
    assert said["id"] == CHOSEN
    assert (said["hits"] > 20, said["fallbacks"] > 0, said["errors"]) == (True, True, 0)
    assert said["hits"] + said["fallbacks"] == builds == sum(recording.spans.name == SPAN_ID["target.metadata.mamba"])
    assert set(said["reasons"]) <= {"a query is longer than a decode's", "a request is still prefilling"}
    assert said["hits"] == 2 * said["sorts"][SHARED], "each step's second group takes the first one's result"
    assert [process["optimizations"] for process in recording.header["processes"]] == [[said], []]
    told = state_in(cli, str(path))
    assert (told["state"], told["hits"], told["fallbacks"]) == ("on", said["hits"], said["fallbacks"])
    assert f"{said['hits'] // 2:,} hits {SHARED}" in told["remarks"]


def test_a_server_says_what_is_on(server: CpuServer, cli: Cli) -> None:
    server.complete(prompts(1), max_tokens=8)
    told = state_in(cli, f":{server.port}")
    assert (told["state"], told["switched"], told["why"]) == ("on", "live", "")
    assert told["hits"] > 0
    other = state_in(cli, f":{server.port}", "query-build")
    assert (other["state"], other["why"]) == ("refused", "it fires in the built-in cycle only")


def test_greedy_streams_are_the_same_without_it(serve: Serve, cli: Cli) -> None:
    """Without a drafter, with which this target's streams repeat."""

    server = serve(method=None, target="nemotron", optimize=CHOSEN)

    def streams(way: str) -> list[list[int]]:
        switched = cli("toggle", f":{server.port}", way, CHOSEN)
        assert switched.returncode == 0, switched.stderr
        found = [server.complete([prompt], max_tokens=48)[0] for prompt in prompts(4)]
        told = state_in(cli, f":{server.port}")
        assert (told["state"], (told["hits"] or 0) > 100) == (("on", True) if way == "--on" else ("applies", False))
        return found

    without = streams("--off")
    assert without == streams("--on")
    assert all(len(set(tokens)) > 5 for tokens in without)


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ("query-build", "query-build cannot be served: it fires in the built-in cycle only; try spantrace run"),
        (f"{CHOSEN},verify-k-plus-one", "verify-k-plus-one cannot be served: it fires in the built-in cycle only"),
        ("nonsense", "no optimization is called 'nonsense'; spantrace optimizations lists them all"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(servers: None, cli: Cli, ids: str, why: str) -> None:
    for arguments, environment in ((("--optimize", ids), {}), ((), {"SPANTRACE_OPTIMIZE": ids})):
        refused = cli("serve", *arguments, "--", "no-model", timeout=30, env=os.environ | environment)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"spantrace: {why}")
        assert refused.stdout == ""


@pytest.mark.parametrize(
    ("choice", "before", "expected"),
    [
        ("all", "import", {}),
        (CHOSEN, "patch", "nothing was applied, because {id} cannot be applied: {seam} was patched by somebody else"),
        (
            CHOSEN,
            "version",
            "nothing was applied, because {id}: it does not know {seam} of vLLM 0.99.0, only of 0.26.0",
        ),
        (f"{CHOSEN},query-build", "nothing", "nothing was applied, because query-build: it fires in the built-in"),
    ],
)
def test_a_process_applies_all_or_nothing_and_says_why(
    servers: None, choice: str, before: str, expected: dict[str, Any] | str
) -> None:
    """In this environment's real vLLM, without a server: what the plugin does in each of its processes."""
    command = [sys.executable, str(ADOPTION), before]
    environment = os.environ | {"SPANTRACE_OPTIMIZE": choice, "VLLM_PLUGINS": "spantrace"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    if isinstance(expected, dict):
        assert CHOSEN in [one["id"] for one in said["on"]]
        assert said["refused"] == expected
        assert said["replaced"]
        assert "spantrace: none of" not in done.stderr
    else:
        seam = "BaseMambaAttentionMetadataBuilder._compute_common_metadata"
        assert (said["on"], said["waiting"], said["replaced"]) == ([], {}, False)
        assert set(said["refused"]) == set(choice.split(","))
        assert all(why.startswith(expected.format(id=CHOSEN, seam=seam)) for why in said["refused"].values())
        assert done.stderr.count("spantrace: none of") == 1
        assert said["child"] == "", "a process that is started later says it again"
