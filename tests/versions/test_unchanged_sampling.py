"""The sampler of every supported vLLM on its own classes: what the GPU reads with the switch, and what was copied."""

from __future__ import annotations

import re
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
SAMPLER = Path(__file__).with_name("sampler_of_this_version.py")
INTERPRETER = Path(__file__).parents[2] / "examples" / "cpu_server" / "interpreter"
ID, STEPS = "unchanged-sampling", 30
VERSIONS = optimized.discover()[ID].versions()
SINCE = {"sampler": VERSIONS, "watermark": VERSIONS[3:], "processor": VERSIONS[4:]}
"""The versions in which somebody else's sampler, a watermark and a user's logits processor can be."""
FIRST, ADDED = "the first step", "a request was added"
WRITTEN = (
    r"\.(?:{})\.(?:(?:np|cpu|gpu)(?:\[[^\]]*\])?\s*[-+*/|&^]?=(?!=)"
    r"|(?:np|cpu|gpu)\.(?:fill|\w+_)\(|(?:\w*write\w*|copy_to_uva)\()"
)
"""Where something that a sampler holds for the GPU is written, or copied to it."""
WRITERS = {"bad_words", "logit_bias", "logprob", "penalties", "states", "thinking_budget", "trace_replay"}
Facts = dict[str, Any]


@cache
def facts_of(version: str) -> Facts:
    """What that version's sampler did."""
    tree = str(source_tree(version))
    return printed_by(SAMPLER, version, tree, on_path=[INTERPRETER], TRITON_INTERPRET="1")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each one."""
    return str(request.param)


@pytest.fixture
def sampler(version: str) -> Facts:
    """Of each version."""
    return facts_of(version)


def test_every_version_is_tried_and_has_what_it_adds_to_the_sampler() -> None:
    assert VERSIONS == ["0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]
    for kind, versions in SINCE.items():
        assert [version for version in VERSIONS if kind in facts_of(version)] == versions
    for name, since in (("thinking_token_budget", 1), ("trace_len", 2), ("restore_when_all_masked", 2)):
        assert [version for version in VERSIONS if name in facts_of(version)["pooled"]] == VERSIONS[since:]
    for version in VERSIONS:
        assert len(facts_of(version)["pooled"]) >= 14
        assert len(facts_of(version)["staged"]) >= 7


def test_the_gpu_reads_the_same_in_every_step_and_only_steps_with_a_request_copy(sampler: Facts) -> None:
    plain = sampler["plain"]
    assert plain["unlike"] == []
    assert plain["quiet"] > STEPS // 4
    assert plain["copied"] == [STEPS, STEPS - plain["quiet"]]
    counts = plain["counts"]
    assert (counts["hits"], counts["fallbacks"], counts["errors"]) == (plain["quiet"], STEPS - plain["quiet"], 0)
    assert set(counts["reasons"]) <= {FIRST, ADDED}


def test_a_step_behind_still_reads_its_own_parameters(sampler: Facts) -> None:
    assert sampler["plain"]["intact"]


def test_a_parameter_that_changes_without_a_request_is_noticed(sampler: Facts) -> None:
    planted = sampler["planted"]
    assert len(planted["unlike"]) == planted["quiet"] == planted["counts"]["hits"] > 0


def test_it_is_switched_on_and_off_between_steps(sampler: Facts) -> None:
    switched = sampler["switched"]
    assert switched["unlike"] == []
    assert switched["hits"] == switched["quiet"]
    assert min(switched["hits"]) > 0


def test_what_breaks_off_is_raised_as_ever_and_copied_in_the_next_step(sampler: Facts) -> None:
    breaking = sampler["breaking"]
    too_many = "ValueError: Too many logit bias tokens: 1025. The max size is 1024."
    assert breaking["raised"] == [too_many, too_many, "RuntimeError: planted", "RuntimeError: planted"]
    assert breaking["found"] == [0.25, 0.75]
    counts = {"id": ID, "hits": 1, "fallbacks": 5, "errors": 0, "reasons": {FIRST: 1, ADDED: 4}}
    assert breaking["counts"] == counts


@pytest.mark.parametrize(
    ("version", "kind", "reason"),
    [(version, "sampler", "a sampler of its own") for version in SINCE["sampler"]]
    + [(version, "processor", "a logits processor of its own") for version in SINCE["processor"]],
)
def test_a_class_of_somebody_elses_is_copied_in_every_step(version: str, kind: str, reason: str) -> None:
    found = facts_of(version)[kind]
    assert (found["unlike"], found["copied"]) == ([], [STEPS, STEPS])
    assert (found["counts"]["hits"], found["counts"]["errors"]) == (0, 0)
    assert found["counts"]["reasons"][reason] == found["quiet"] > 0


@pytest.mark.parametrize("version", SINCE["watermark"])
def test_a_watermark_is_copied_in_every_step_and_the_rest_is_not(version: str) -> None:
    found = facts_of(version)["watermark"]
    assert (found["unlike"], found["copied"]) == ([], [STEPS, STEPS])
    assert found["counts"]["hits"] == found["quiet"] > 0


def test_nothing_but_the_states_writes_what_the_sampler_holds(version: str, sampler: Facts) -> None:
    names = "|".join([*sampler["pooled"], *sampler["staged"]])
    written, tree = re.compile(WRITTEN.format(names)), source_tree(version)
    found = {path.relative_to(tree) for path in tree.rglob("*.py") if written.search(path.read_text())}
    folder = Path("vllm/v1/worker/gpu/sample")
    assert found == {folder / f"{name}.py" for name in WRITERS if (tree / folder / f"{name}.py").exists()}
