"""keep-last-block in real servers: what a repeated prompt finds cached, what is answered, and switching under load."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import DSPARK
from live import MANY, assert_clean, assert_same_tokens, live, wait_until
from packaging.version import Version

from spantrace.loading import load
from spantrace.vllm_adapter.launch import installed_version
from spantrace.vllm_adapter.live import reset_prefix_cache
from spantrace.vllm_adapter.servers import find

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

CHOSEN = "keep-last-block"
BLOCK = 32
HITS = "vllm:prefix_cache_hits_total"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 5
OLD = Version(installed_version() or "0") < Version("0.32.0")
ALIGNED = ("--enable-prefix-caching", "--mamba-cache-mode", "align", *(("--dtype", "bfloat16") if OLD else ()))
"""An old CPU build has no convolution in float32."""
SEAMS = {
    "vllm.v1.core.sched.scheduler:Scheduler:_get_local_prefix_cache_hit",
    "vllm.v1.core.sched.scheduler:Scheduler:_mamba_block_aligned_split",
    "vllm.v1.core.kv_cache_manager:KVCacheManager:get_computed_blocks",
}


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """The usual target with a DFlash drafter that really drafts."""
    return serve(method="dflash", optimize=CHOSEN)


def toggle(cli: Cli, server: CpuServer, way: str) -> dict[str, Any]:
    """What `spantrace toggle` says of it; `way` is "--on" or "--off"."""
    said = cli("toggle", f":{server.port}", way, CHOSEN, "--format", "json")
    assert said.returncode == 0, said.stderr
    return next(dict(one) for one in json.loads(said.stdout)["optimizations"] if one["id"] == CHOSEN)


def state(cli: Cli, server: CpuServer) -> dict[str, Any]:
    """What `spantrace optimizations` says of it."""
    said = cli("optimizations", f":{server.port}", "--format", "json")
    return next(one for one in json.loads(said.stdout)["optimizations"] if one["id"] == CHOSEN)


def sent_twice(server: CpuServer, prompt: str = PROMPT) -> tuple[int, list[list[int]]]:
    """The tokens that the second one of two equal prompts finds cached, and both answers; the cache is empty before."""
    where = find(f":{server.port}", Path(os.environ["SPANTRACE_DIR"]))
    wait_until(lambda: reset_prefix_cache(where) == "", "an idle engine")
    answers = server.complete([prompt], max_tokens=24)
    before = server.metrics()[HITS]
    answers += server.complete([prompt], max_tokens=24)
    return int(server.metrics()[HITS] - before), answers


def compared(cli: Cli, server: CpuServer) -> tuple[int, int, list[list[int]]]:
    """What is found without and with it, and all answers."""
    toggle(cli, server, "--off")
    without, answers = sent_twice(server)
    toggle(cli, server, "--on")
    found, others = sent_twice(server)
    return without, found, answers + others


def test_eagle3_is_unchanged_to_the_token(serve: Serve, cli: Cli) -> None:
    eagle3 = serve(method="eagle3")
    without, found, answers = compared(cli, eagle3)
    assert found == without > 0
    assert all(answer == answers[0] for answer in answers)
    told = state(cli, eagle3)
    assert (told["hits"], told["fallbacks"], told["errors"]) == (0, 2, 0)
    assert "2 x with eagle3 the last block may have been computed from other tokens" in told["remarks"]
    plain = serve(method="dflash", optimize=CHOSEN)
    assert compared(cli, plain)[0] == without, "eagle3 would have hit one block more"


def test_a_repeated_prompt_hits_exactly_one_block_more(server: CpuServer, cli: Cli) -> None:
    without, found, answers = compared(cli, server)
    assert without > 0
    assert found == without + BLOCK
    assert all(answer == answers[0] for answer in answers)
    told = state(cli, server)
    assert (told["state"], told["hits"], told["fallbacks"], told["errors"]) == ("on", 1, 1, 0)
    assert told["switched"] == "live"


def test_greedy_text_is_the_same_with_and_without_it(server: CpuServer, cli: Cli) -> None:
    prompts = [PROMPT[: 50 + 31 * length] for length in range(6)]
    answers = {}
    for way in ("--off", "--on"):
        toggle(cli, server, way)
        answers[way] = [sent_twice(server, prompt)[1] for prompt in prompts]
    assert answers["--on"] == answers["--off"]
    assert all(first == second for first, second in answers["--on"])
    assert len({tuple(first) for first, _ in answers["--on"]}) > 1


def test_it_is_switched_ten_times_under_load_and_nothing_is_lost(
    server: CpuServer, witness: AskWitness, cli: Cli, tmp_path: Path
) -> None:
    seer, path, counted = witness(server), tmp_path / "r.spantrace", []
    toggle(cli, server, "--off")
    seer.remember()
    with server.load(3, max_tokens=16) as requests:
        with live(server, path, *MANY, "--warmup", "0") as running:
            for _ in range(5):
                assert toggle(cli, server, "--on")["before"] == "off"
                wait_until(lambda: state(cli, server).get("hits"), "a hit")
                off = toggle(cli, server, "--off")
                assert (off["now"], off["errors"]) == ("off", 0)
                counted.append(off["hits"])
                running.has(running.steps() + 5)
        assert seer.changed() == []
        toggle(cli, server, "--on")
        assert set(seer.changed()) == SEAMS
        answered = requests.requests
        wait_until(lambda: requests.requests > answered + 3, "more answers")
    assert requests.errors == []
    assert requests.tokens == 16 * requests.requests
    assert all(hits > 0 for hits in counted)
    recording = load(path)
    assert_clean(recording)
    steps = recording.cycles.step[recording.cycles.step > 0]
    assert set(np.diff(steps).tolist()) == {1}, "no step was left out"
    without, found, _ = compared(cli, server)
    assert found == without + BLOCK, "what was held is given back each time"


def test_dspark_on_the_other_runner_hits_exactly_one_block_more(serve: Serve, cli: Cli) -> None:
    dspark = serve(**DSPARK)
    without, found, answers = compared(cli, dspark)
    assert without > 0
    assert found == without + BLOCK
    assert all(answer == answers[0] for answer in answers)
    assert state(cli, dspark)["hits"] == 1


@pytest.mark.long
def test_with_mamba_layers_a_repeated_prompt_hits_exactly_one_block_more(serve: Serve, cli: Cli) -> None:
    hybrid = serve(method="dflash", target="nemotron", runner="V2", optimize=CHOSEN, extra_args=ALIGNED)
    sizes = re.findall(r'\bblock_size="(\d+)"', hybrid.get("/metrics"))
    without, found, answers = compared(cli, hybrid)
    assert without > 0
    assert found == without + int(sizes[0])
    assert len({answer[0] for answer in answers}) == 1, "later tokens differ: the CPU misreads states beside a drafter"
    told = state(cli, hybrid)
    assert (told["hits"], told["errors"]) == (1, 0)


@pytest.mark.parametrize("streams", [1, 4])
def test_dflash_streams_are_the_same_while_they_are_recorded(server: CpuServer, streams: int, tmp_path: Path) -> None:
    from cpu_server.client import PROMPTS

    assert_same_tokens(server, PROMPTS[:streams], tmp_path / "r.spantrace", tokens=96, cycles=40)


@pytest.mark.parametrize("streams", [1, 4])
def test_dspark_streams_are_the_same_while_they_are_recorded(serve: Serve, streams: int, tmp_path: Path) -> None:
    from cpu_server.client import PROMPTS

    assert_same_tokens(serve(**DSPARK), PROMPTS[:streams], tmp_path / "r.spantrace", tokens=12, cycles=2)
