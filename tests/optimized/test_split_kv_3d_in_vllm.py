"""The split attention in the installed vLLM's own layer and graph manager, which a process of its own interprets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from optimized.judging import TOLERANCES

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

HERE = Path(__file__).parent
INTERPRETER = HERE.parents[1] / "examples/cpu_server/interpreter"
CLOSE = TOLERANCES["float32"]
TAKEN = ("causal", "window and sinks", "not causal", "not causal, a window")
LEFT = (
    "causal and some",
    "R-SWA",
    "chunked",
    "capped",
    "depend on the batch",
    "both directions",
    "more than 4 requests",
    "quantized",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(INTERPRETER), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, HERE / "attention_in_vllm.py"],
        env=environment,
        cwd=tmp_path_factory.mktemp("vllm"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def counted(one: dict[str, Any]) -> tuple[int, int, int]:
    return one["hits"], one["fallbacks"], one["errors"]


@pytest.mark.parametrize("name", TAKEN)
def test_it_agrees_with_vllms_own_kernel_though_not_in_every_bit(found: dict[str, Any], name: str) -> None:
    one = found["attention"]["taken"][name]
    assert counted(one) == (1, 0, 0)
    assert 0 < one["error"] < CLOSE
    assert one["equal_after"]


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_admitted_keeps_its_bits_and_says_why(found: dict[str, Any], name: str) -> None:
    one = found["attention"]["left"][name]
    assert counted(one) == (0, 1, 0)
    assert one["equal"]
    (reason,) = one["reasons"]
    assert name in reason


def test_every_batch_is_looked_at(found: dict[str, Any]) -> None:
    assert (set(found["attention"]["taken"]), set(found["attention"]["left"])) == (set(TAKEN), set(LEFT))


def test_the_targets_layers_are_neither_taken_nor_counted(found: dict[str, Any]) -> None:
    one = found["attention"]["target"]
    assert counted(one) == (0, 0, 0)
    assert one["equal"]


def test_both_variants_are_captured_and_the_switch_says_which_is_replayed(found: dict[str, Any]) -> None:
    graphs = found["graphs"]
    assert counted(graphs["captured"]) == (0, 0, 0)
    for turn in range(2):
        assert counted(graphs[f"on {turn}"]) == (1, 0, 0)
        assert 0 < graphs[f"on {turn}"]["error"] < CLOSE
        assert graphs[f"off {turn}"]
    assert graphs["held"] == found["scratch"]
    assert graphs["kept"] == [1, 0]


def test_buffers_that_this_vllm_has_by_itself_are_used(found: dict[str, Any]) -> None:
    few, many = found["buffers"]
    for one in (few, many):
        assert counted(one) == (1, 0, 0)
        assert 0 < one["apart"] < CLOSE
    assert (few["allocated"], many["allocated"]) == (found["scratch"], 0)


def test_the_targets_verification_is_split_where_that_was_asked_for(found: dict[str, Any]) -> None:
    split, left = found["target"]["1"], found["target"]["0"]
    assert counted(split) == (2, 0, 0)
    assert all(0 < error < CLOSE for error in split["apart"])
    assert counted(left) == (0, 0, 0)
    assert left["apart"] == [0.0, 0.0]
    assert split["equal_after"]
    assert left["equal_after"]


def test_graphs_that_are_older_than_the_switch_stay_vllms_and_are_counted(found: dict[str, Any]) -> None:
    assert found["late"]["equal"]
    assert counted(found["late"]) == (0, 1, 0)
    assert "captured before the switch" in next(iter(found["late"]["reasons"]))


def test_a_failure_leaves_the_layer_to_vllm_and_is_counted_once(found: dict[str, Any]) -> None:
    assert found["failing"]["equal"] == [True, True]
    assert found["failing"]["reasons"] == {"RuntimeError: planted": 1, "it failed before": 2}
    assert counted(found["failing"]) == (0, 2, 1)
