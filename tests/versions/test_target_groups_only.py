"""A target's metadata by every supported vLLM's own model states: what each layer is given, with the switch and not."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sources import printed_by, source_tree

import optimized
from optimized.gate import source
from optimized.launching import INTERPRET
from optimized.target_groups_only import groups
from optimized.target_groups_only.sources import DEFAULT, HYBRID

pytestmark = [
    pytest.mark.versions,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM's dependencies are not installed here"),
]
SCRIPT = Path(__file__).with_name("target_groups_of_this_version.py")
BACKEND = Path(__file__).parents[2] / "examples" / "cpu_server" / "interpreter"
ITEM = optimized.discover()["target-groups-only"]
VERSIONS = ITEM.versions()
ON = [False, True, True, True, False, True, True]
PROPOSE = "vllm.v1.worker.gpu.spec_decode.dflash.speculator:DFlashSpeculator.propose"
EXECUTE = "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model"
DSPARK = "vllm.v1.worker.gpu.spec_decode.dspark.speculator:DSparkSpeculator"
REFUSED = {
    "one group of both": groups.NONE_ALONE,
    "captures": groups.CAPTURE,
    "a strange state": groups.STRANGE_STATE,
    "a strange drafter": groups.STRANGE_DRAFTER,
    "a connector": groups.CONNECTOR,
    "two microbatches": groups.MICROBATCHES,
    "dual batches": groups.MICROBATCHES,
    "spread prefills": groups.SPREAD,
    "spread decodes": groups.SPREAD,
}
Facts = dict[str, Any]


@cache
def facts_of(version: str) -> Facts:
    """What that version's model states built, on a CPU."""
    return printed_by(SCRIPT, version, str(source_tree(version)), on_path=[BACKEND], **{INTERPRET: "1"})


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each one."""
    return str(request.param)


def counted(one: Facts) -> list[tuple[int, int, int]]:
    """Hits, fallbacks and errors of each time that it was on."""
    return [(counts["hits"], counts["fallbacks"], counts["errors"]) for counts in one["counts"]]


def test_every_version_is_tried() -> None:
    assert VERSIONS == ["0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]


@pytest.mark.parametrize("situation", ["a cache each", "a group each", "dspark", "hybrid"])
def test_the_targets_layers_are_given_the_same_and_the_drafters_nothing(version: str, situation: str) -> None:
    one = facts_of(version)[situation]
    assert one["unlike"] == []
    assert one["left out"] == ON
    assert counted(one) == [(3, 0, 0), (2, 0, 0)]
    assert min(one["layers"]) >= 2


@pytest.mark.parametrize("situation", REFUSED)
def test_what_may_need_all_groups_builds_for_all(version: str, situation: str) -> None:
    one = facts_of(version)[situation]
    assert one["unlike"] == []
    assert not any(one["left out"])
    assert counted(one) == [(0, 3, 0), (0, 2, 0)]
    assert {reason for counts in one["counts"] for reason in counts["reasons"]} == {REFUSED[situation]}


def test_a_dummy_run_builds_for_all(version: str) -> None:
    one = facts_of(version)["a dummy run"]
    assert (one["unlike"], any(one["left out"])) == ([], False)
    assert counted(one) == [(0, 0, 0), (0, 0, 0)]


def test_a_failure_of_ours_builds_for_all_and_is_counted(version: str) -> None:
    one = facts_of(version)["an error"]
    assert (one["unlike"], any(one["left out"])) == ([], False)
    assert counted(one) == [(0, 0, 3), (0, 0, 2)]


def test_a_targets_group_that_is_dropped_shows(version: str) -> None:
    assert facts_of(version)["a target's group dropped"]["unlike"] == [at for at, on in enumerate(ON) if on]


def test_no_server_is_kept_alive(version: str) -> None:
    assert facts_of(version)["gone"] == {"alive": 0, "hits": 2}


def test_a_proposal_reads_nothing_of_the_targets_metadata(version: str) -> None:
    assert facts_of(version)["configured"], "there is no such key to look for a connector by"
    tree = source_tree(version)
    text, dspark = source(tree, PROPOSE), source(tree, DSPARK)
    assert text
    assert dspark
    (propose,) = ast.parse("if True:\n" + text).body[0].body  # type: ignore[attr-defined]
    parameters = {argument.arg for argument in propose.args.args}
    read = {node.id for node in ast.walk(propose) if isinstance(node, ast.Name)}
    assert {"attn_metadata", "slot_mappings"} <= parameters - read
    assert "def propose" not in dspark


def test_a_step_hands_its_groups_on_as_they_are(version: str) -> None:
    for target in (DEFAULT, HYBRID):
        text = source(source_tree(version), target)
        assert text
        assert "attn_groups=attn_groups" in text
    step = source(source_tree(version), EXECUTE)
    assert step
    assert step.count("self.prepare_attn(") == step.count("self.model_state.prepare_attn(") == 1
    assert step.index("self.prepare_attn(") < step.index("self.model_state.prepare_attn(")
