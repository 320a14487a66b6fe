"""Graph spans and a real vLLM on the CPU: its models pass the sites in order, its server says that it has no graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from live import assert_clean, record

from spantrace.vllm_adapter.graph_sites import COMPILED, NO_MARKOV, OUTSIDE, WITHIN_MARKOV

if TYPE_CHECKING:
    from cpu_server import CpuServer

    from tests.conftest import Cli

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("pass_graph_sites.py")
TARGET = [f"target.forward.{name}" for name in ("embedding", "first_layers", "middle_layers", "last_layers")]
DRAFTER = [f"draft.forward.{name}" for name in ("context_kv", "layers", "logits")]
LOGITS = "target.forward.logits"


def printed(target: str, method: str, runner: str) -> dict[str, Any]:
    """What the script says of two of the tiny models."""
    from cpu_server.install import HERE, environment

    more = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE / "interpreter")} if runner == "V2" else {}
    models = environment() / "models"
    command = [sys.executable, str(SCRIPT), str(models / target), method, str(models / method), runner]
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def steps(passed: list[str]) -> Iterator[list[str]]:
    """The sites of the passes of each model, in turn; a drafter shares the target's embedding."""
    shared = TARGET[0]
    sites = [site for at, site in enumerate(passed) if site and not (site == shared and passed[at - 1] == DRAFTER[0])]
    for _, some in groupby(sites, lambda site: site in TARGET):
        yield list(dict.fromkeys(some))


@pytest.mark.parametrize(
    ("target", "method", "runner", "missing", "rest"),
    [
        ("nemotron", "dflash", "V1", {"draft.forward.markov": NO_MARKOV}, "draft.forward.sampling"),
        ("target", "dspark", "V2", {"draft.forward.sampling": WITHIN_MARKOV}, "draft.forward.markov"),
    ],
)
def test_models_pass_the_sites_in_order(
    target: str, method: str, runner: str, missing: dict[str, str], rest: str
) -> None:
    found = printed(target, method, runner)
    assert found["target"] == {**dict.fromkeys(TARGET, ""), LOGITS: OUTSIDE}
    assert found["drafter"] == {**dict.fromkeys(DRAFTER, ""), **missing, rest: "rest"}
    passes = list(steps(found["passed"]))
    assert len(passes) >= 4
    assert passes[::2] == [TARGET] * len(passes[::2])
    assert passes[1::2] == [DRAFTER] * len(passes[1::2])
    assert found["compiled"] == {**dict.fromkeys(TARGET, COMPILED), LOGITS: OUTSIDE}


def test_a_server_that_was_asked_and_has_no_graphs_is_recorded_as_ever_and_says_so(
    profiled: tuple[CpuServer, Path], tmp_path: Path, cli: Cli
) -> None:
    (server, _), path = profiled, tmp_path / "r.spantrace"
    recording = record(server, path, lambda: server.complete(("one", "two"), 48))
    assert_clean(recording)
    reported = cli("report", str(path))
    assert reported.returncode == 0, reported.stderr
    said = " ".join(reported.stdout.split())
    assert "not timed graph spans: no CUDA graphs here: this server runs without a GPU" in said
    assert "graph parts" not in said
