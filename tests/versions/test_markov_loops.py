"""_sample_sequential() of the DSpark drafter of every supported vLLM on its own classes, with the chain on and off."""

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
LOOP = Path(__file__).with_name("markov_loop_of_this_version.py")
ID = "markov-chain"
VERSIONS = optimized.discover()[ID].versions()
NOT_DRAFTED = [-1, -1, -1]
REFUSED = {
    "draft_logits": "drafts are sampled, not greedy",
    "_draft_topk": "only some candidates are refined",
    "acceptance_estimator": "the acceptance of the drafts is estimated",
    "confidence": "the confidence of the drafts is asked for",
    "vocabulary": "the drafter's vocabulary is a part of the target's",
    "hook": "the model drafts by itself",
    "scale": "the logits are scaled or capped",
    "dtype": "the head has a dtype of its own",
    "quantized": "the Markov head is quantized",
    "ranks": "the Markov head is spread over ranks",
    "model": "the drafter is a SimpleNamespace, whose Markov head is not known",
}
Facts = dict[str, Any]


@cache
def facts_of(version: str) -> Facts:
    """What that version's drafter did."""
    return printed_by(LOOP, version, str(source_tree(version)))


@pytest.fixture(params=VERSIONS)
def drafter(request: pytest.FixtureRequest) -> Facts:
    """Of each version."""
    return facts_of(request.param)


def test_every_version_is_tried_and_the_newest_asks_its_model() -> None:
    assert VERSIONS == ["0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]
    assert [version for version in VERSIONS if facts_of(version)["hooked"]] == ["0.33.0"]


def test_the_same_tokens_are_drafted_on_and_off_and_each_step_is_a_hit(drafter: Facts) -> None:
    found = drafter["greedy"]
    assert found["stock"] == found["on"] == found["off"]
    for requests, tokens in zip((1, 3, 4), found["stock"], strict=True):
        assert tokens[requests:] == [NOT_DRAFTED] * (4 - requests)
        assert len({token for row in tokens[:requests] for token in row}) > requests
    assert found["counts"] == {"id": ID, "hits": 3, "fallbacks": 0, "errors": 0, "reasons": {}}
    assert found["bytes"] == 8 * 4 * 3
    assert found["left behind"] is False


def test_what_is_not_surely_the_same_is_refused(drafter: Facts) -> None:
    assert drafter["refused"] == {"nothing": None, **REFUSED}


def test_a_refused_drafter_runs_its_loop_and_says_why(drafter: Facts) -> None:
    same, counts = drafter["left alone"]["refused"]
    assert same
    assert counts == {"id": ID, "hits": 0, "fallbacks": 1, "errors": 0, "reasons": {REFUSED["vocabulary"]: 1}}


def test_a_failure_of_ours_is_counted_once_and_its_loop_runs_from_then_on(drafter: Facts) -> None:
    same, same_again, counts, left_behind = drafter["left alone"]["failed"]
    assert (same, same_again, left_behind) == (True, True, False)
    assert counts["reasons"] == {"RuntimeError: planted": 1, "it failed before": 1}
    assert (counts["hits"], counts["fallbacks"], counts["errors"]) == (0, 1, 1)


def test_a_hit_is_the_replay_of_a_graph_that_was_captured_with_it_and_not_the_capture(drafter: Facts) -> None:
    assert drafter["replays"]["at capture"] == 0
    counts = drafter["replays"]["counts"]
    unseen = "no graph of as many requests was captured with the switch"
    assert (counts["hits"], counts["fallbacks"], counts["errors"]) == (2, 2, 1)
    assert counts["reasons"] == {"RuntimeError: planted": 1, "it failed before": 1, unseen: 1}
