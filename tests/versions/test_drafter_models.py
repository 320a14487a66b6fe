"""The contexts and the blocks of the DFlash model of every supported vLLM on its own classes, with the switches on."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sources import printed_by, source_tree

import optimized

pytestmark = [
    pytest.mark.versions,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM's dependencies are not installed here"),
]
MODEL = Path(__file__).with_name("drafter_model_of_this_version.py")
INTERPRETER = Path(__file__).parents[2] / "examples" / "cpu_server" / "interpreter"
CONTEXT, HEADS = "context-norm-rope", "qk-norm-rope"
VERSIONS = optimized.discover()[CONTEXT].versions()
DTYPES = ("float32", "float16", "bfloat16")
UNSEEN = "no graph of as many tokens was captured with the switch"
LATER = {"RuntimeError: planted": 1, "it failed before": 2}
NO_CONTEXT = {
    "quantized": "the projections are quantized",
    "scaled": "values are scaled",
    "neighbours": "neighbours rotate, not halves",
    "part": "only a part of each head rotates",
    "dtype": "norms or rotary table are of another dtype than the projections",
    "table": "the block is rotated by another table than the context",
    "own method": "the drafter is a Gated, whose _normalize_context_k is its own",
}
NO_BLOCK = {
    "norm": "a head norm is of another kind",
    "override": "a head norm is of a part of the head",
    "epsilon": "queries and keys are normed with different epsilons",
    "rotary": "the rotary embedding is of a kind of its own",
    "native": "vLLM's rotation is switched off",
    "part": "only a part of each head rotates",
    "neighbours": "neighbours rotate, not halves",
    "table dtype": "norms or rotary table are of another dtype than the heads",
    "positions": "positions are not one number a token",
    "dtype": "norms or rotary table are of another dtype than the heads",
}
Facts = dict[str, Any]


@cache
def facts_of(version: str) -> Facts:
    """What that version's model did."""
    tree = str(source_tree(version))
    return printed_by(MODEL, version, tree, on_path=[INTERPRETER], TRITON_INTERPRET="1")


@pytest.fixture(params=VERSIONS)
def model(request: pytest.FixtureRequest) -> Facts:
    """Of each version."""
    return facts_of(request.param)


def counts(name: str, hits: int = 0, errors: int = 0, **reasons: int) -> Facts:
    """What a switch says."""
    fallbacks = sum(reasons.values()) - errors
    return {"id": name, "hits": hits, "fallbacks": fallbacks, "errors": errors, "reasons": reasons}


def test_every_version_is_tried_and_the_newer_ones_hold_the_context_in_graphs() -> None:
    assert optimized.discover()[HEADS].versions() == VERSIONS
    assert VERSIONS == ["0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]
    held = [version for version in VERSIONS if "replays" in facts_of(version)]
    assert held == ["0.31.0", "0.32.0", "0.33.0"]
    for name, live in ((CONTEXT, VERSIONS[:4]), (HEADS, [])):
        assert [version for version in VERSIONS if optimized.discover()[name].is_live(version)] == live
        assert optimized.discover()[name].is_live()


@pytest.mark.parametrize("how", ["one tensor", "groups"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_caches_hold_every_bit_of_the_chain_and_each_context_is_a_hit(model: Facts, dtype: str, how: str) -> None:
    found = model["contexts"][f"{dtype}, {how}"]
    assert found["equal"] == [True, True]
    assert found["written"] > 1900
    assert found["counts"] == counts(CONTEXT, hits=1)
    assert found["bytes"] == 2 * 3 * 8


def test_other_backends_are_given_what_they_always_were(model: Facts) -> None:
    found = model["backends"]
    assert found["flash"]
    assert found["own"] == [True] * 9
    assert found["untouched"]
    assert found["counts"] == counts(CONTEXT, hits=2)


def test_a_run_that_stores_nothing_is_not_counted(model: Facts) -> None:
    assert model["dummies"] == {"untouched": True, "counts": counts(CONTEXT)}


def test_a_context_that_is_not_surely_the_same_is_refused(model: Facts) -> None:
    assert model["refusals"] == {"nothing": None, "dspark": None, **NO_CONTEXT}


def test_what_is_left_alone_is_as_ever_and_says_why(model: Facts) -> None:
    found = model["left alone"]
    assert {name: one["equal"] for name, one in found.items()} == dict.fromkeys(found, True)
    assert found["refused"]["counts"] == counts(CONTEXT, **{NO_CONTEXT["scaled"]: 2})
    assert found["too few slots"]["counts"] == counts(CONTEXT, **{"there is not one slot a token": 2})
    assert found["failed"]["counts"] == counts(CONTEXT, errors=1, **LATER)


@pytest.mark.parametrize("version", VERSIONS[4:])
def test_a_hit_is_the_replay_of_a_graph_that_holds_the_context(version: str) -> None:
    found = facts_of(version)["replays"]
    assert (found["warm"], found["at capture"]) == (1, 0)
    reasons = {"RuntimeError: planted": 1, "it failed before": 1}
    assert found["counts"] == counts(CONTEXT, hits=1 + 2, errors=1, **reasons)


@pytest.mark.parametrize("name", [*DTYPES, "scaled"])
def test_a_layer_attends_by_every_bit_of_the_chain_and_each_call_is_a_hit(model: Facts, name: str) -> None:
    assert model["blocks"][name] == {"equal": [True, True], "moved": True, "counts": counts(HEADS, hits=1)}


def test_heads_that_are_not_surely_the_same_are_refused(model: Facts) -> None:
    assert model["refused blocks"] == {"nothing": None, **NO_BLOCK}


def test_a_failure_of_ours_leaves_the_layer_to_vllm_and_is_counted_once(model: Facts) -> None:
    assert model["failed block"] == {"equal": [True, True], "counts": counts(HEADS, errors=1, **LATER)}


def test_a_compiled_layer_is_traced_without_the_switch(model: Facts) -> None:
    assert model["compiled block"] == {"equal": True, "counts": counts(HEADS)}


def test_replays_are_counted_by_what_their_graphs_hold_and_never_after_the_switch(model: Facts) -> None:
    held, compiled = model["replayed blocks"]
    assert held == {"at capture": 0, "counts": counts(HEADS, hits=2, **{UNSEEN: 1})}
    why = "the drafter is compiled by torch.compile, which fuses them by itself"
    assert compiled == {"at capture": 0, "counts": counts(HEADS, **{why: 3})}
