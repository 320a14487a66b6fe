"""A DFlash drafter's server whose target builds for its own layers alone: steps, spans and text, switched under load.

The drafter has other KV heads than the target, and so a KV cache of its own; those of the usual models share one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from live import assert_clean, record, wait_until

from spantrace.spans import SPAN_ID

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

CHOSEN = "target-groups-only"
SEAMS = ["vllm.v1.worker.gpu.model_runner:GPUModelRunner:prepare_attn"]
KV_HEADS = 4


@pytest.fixture(scope="module")
def server(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> CpuServer:
    """Runner V2, whose Triton kernels are interpreted; drafts are verified."""
    from cpu_server import models

    folder = tmp_path_factory.mktemp("models") / "dflash"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "KV_HEADS", KV_HEADS)
        models.save(folder, models.dflash_config("DFlashDraftModel", block_size=8), models.dflash_weights())
    speculation = json.dumps({"method": "dflash", "num_speculative_tokens": 3, "model": str(folder)})
    found = serve(method=None, runner="V2", extra_args=("--speculative-config", speculation))
    found.complete(max_tokens=8)
    return found


def state(cli: Cli, server: CpuServer) -> dict[str, Any]:
    """What `spantrace optimizations` says of it."""
    said = cli("optimizations", f":{server.port}", "--format", "json")
    assert said.returncode == 0, said.stderr
    return next(one for one in json.loads(said.stdout)["optimizations"] if one["id"] == CHOSEN)


def toggle(cli: Cli, server: CpuServer, way: str) -> dict[str, Any]:
    """What `spantrace toggle` says of it; `way` is "--on" or "--off"."""
    said = cli("toggle", f":{server.port}", way, CHOSEN, "--format", "json")
    assert said.returncode == 0, said.stderr
    return next(dict(one) for one in json.loads(said.stdout)["optimizations"] if one["id"] == CHOSEN)


def test_every_step_builds_the_targets_metadata_alone(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    from cpu_server.client import PROMPTS

    seen: dict[str, tuple[int, int, list[list[int]]]] = {}
    for way in ("--off", "--on"):
        if way == "--on":
            toggle(cli, server, way)
        answers: list[list[int]] = []
        path = tmp_path / f"{way}.spantrace"
        try:
            recording = record(server, path, lambda to=answers: to.extend(server.complete(PROMPTS[:2], max_tokens=24)))
        finally:
            if way == "--on":
                toggle(cli, server, "--off")
        assert_clean(recording)
        names = ("target.metadata", "target.metadata.attention")
        steps, builds = (int(sum(recording.spans.name == SPAN_ID[name])) for name in names)
        seen[way] = steps, builds, answers
    (counted,) = recording.header["optimizations"]
    assert (counted["id"], counted["fallbacks"], counted["errors"]) == (CHOSEN, 0, 0)
    assert counted["hits"] == seen["--on"][0] > 10
    assert seen["--off"][1] * seen["--on"][0] > seen["--on"][1] * seen["--off"][0], "fewer builds a step"
    assert seen["--on"][2] == seen["--off"][2]
    assert all(len(set(tokens)) > 5 for tokens in seen["--on"][2])


def test_it_is_switched_under_load(server: CpuServer, witness: AskWitness, cli: Cli) -> None:
    seer = witness(server)
    seer.remember()
    with server.load(1) as requests:
        for _ in range(2):
            toggle(cli, server, "--on")
            assert sorted(seer.changed()) == SEAMS
            wait_until(lambda: state(cli, server)["hits"] > 20, "steps")
            off = toggle(cli, server, "--off")
            assert seer.changed() == []
            assert (off["now"], off["fallbacks"], off["errors"]) == ("off", 0, 0)
    assert requests.errors == []
    assert state(cli, server)["state"] == "applies"
