"""keep-last-block in plain Python: what it is for, what it holds and gives back, and that its cases catch faults."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from optimized.cases import Place
from optimized.judging import judge
from optimized.keep_last_block import OPTIMIZATION
from optimized.keep_last_block.kept import Held, held, why_not
from optimized.keep_last_block.lookup import FULL, STATE, Cache, Group
from optimized.keep_last_block.reference import Resent
from optimized.keep_last_block.vllm import KeptBlocks, keep

CASES = {case.name: case for case in OPTIMIZATION.cases()}


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_it_is_for_drafters_that_leave_nothing_to_drop(method: str) -> None:
    assert why_not(method) is None


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model", "dflash2", "DFlash", "", None])
def test_it_is_for_no_other_method(method: str | None) -> None:
    assert why_not(method)


def test_what_is_held_is_given_back_as_the_very_object() -> None:
    owner, before = SimpleNamespace(groups={1, 2}, other=3), {1, 2}
    groups = owner.groups
    changes = Held()
    changes.set(owner, "groups", set())
    changes.set(owner, "groups", {4})
    assert owner.groups == {4}
    changes.put_back()
    assert owner.groups is groups
    assert (owner.groups, owner.other) == (before, 3)
    changes.put_back()
    assert owner.groups is groups


def test_what_somebody_else_has_set_since_is_left_alone() -> None:
    owner = SimpleNamespace(groups={1, 2})
    changes = Held()
    changes.set(owner, "groups", set())
    owner.groups = "somebody else's"
    changes.put_back()
    assert owner.groups == "somebody else's"


def test_attributes_that_are_not_there_are_not_held_and_an_error_gives_the_others_back() -> None:
    owner = SimpleNamespace(first=True)
    with held(owner, first=False, second=False):
        assert vars(owner) == {"first": False}
    with pytest.raises(KeyError), held(owner, first=False):
        raise KeyError
    assert vars(owner) == {"first": True}


def test_a_coordinator_that_cannot_be_held_whole_is_as_before() -> None:
    managers = (SimpleNamespace(use_eagle=True), SimpleNamespace())
    coordinator = SimpleNamespace(eagle_group_ids={0, 1}, single_type_managers=managers)
    ids = coordinator.eagle_group_ids
    with pytest.raises(AttributeError):
        keep(coordinator)
    assert coordinator.eagle_group_ids is ids
    assert managers[0].use_eagle is True


def test_a_strange_scheduler_runs_stock_and_is_counted_as_an_error() -> None:
    switch = KeptBlocks()
    before, find, split = (switch.stand_ins()[name] for name in STOCK)
    scheduler, cache = SimpleNamespace(), SimpleNamespace()
    assert before(STOCK["Scheduler._get_local_prefix_cache_hit"])(scheduler, "request") == "found request"
    assert find(STOCK["KVCacheManager.get_computed_blocks"])(cache, "request") == "request's blocks"
    stock_split = STOCK["Scheduler._mamba_block_aligned_split"]
    assert split(stock_split)(self=scheduler, request="request", tokens=7) == 7
    said = switch.counts.as_dict("x")
    assert (said["hits"], said["fallbacks"], said["errors"]) == (0, 0, 3)
    switch.close()


STOCK: dict[str, Any] = {
    "Scheduler._get_local_prefix_cache_hit": lambda scheduler, request: f"found {request}",
    "KVCacheManager.get_computed_blocks": lambda cache, request: f"{request}'s blocks",
    "Scheduler._mamba_block_aligned_split": lambda self, request, tokens: tokens,
}


def test_the_plain_cache_drops_one_block_of_a_hit_that_has_any() -> None:
    for reach, length in ((FULL, 23), (2, 23), (FULL, 24), (FULL, 25), (FULL, 4), (FULL, 0)):
        found = []
        for drops in (True, False):
            cache = Cache((Group(reach, drops),), 4, 100)
            cache.store(0, 25, 0, 6)
            found.append(cache.find(0, length))
        assert found == [max(max(length - 1, 0) // 4 - 1, 0), max(length - 1, 0) // 4]


def test_a_state_is_cached_one_block_earlier_where_blocks_are_dropped() -> None:
    cache = Cache((Group(FULL, True), Group(STATE, False)), 4, 100)
    cache.store(0, 23, 0, cache.last_state(23))
    assert [block for block in range(5) if cache.has(0, 1, block)] == [2, 3]
    assert cache.find(0, 23) == 4
    with held(cache, backs_off=False):
        assert cache.last_state(23) == 5


@pytest.mark.parametrize(
    "name", ["all accepted", "idle rows", "a window", "states", "odd shapes", "capacity reached", "20 steps"]
)
def test_a_lookup_that_drops_a_block_after_all_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(OPTIMIZATION, CASES[name], Place()).passed
    monkeypatch.setattr(Held, "set", lambda *_: None)
    assert not judge(OPTIMIZATION, CASES[name], Place()).passed


def test_a_state_that_is_cached_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "last_state", lambda cache, length: max(length // cache.size - 1, 0))
    assert not judge(OPTIMIZATION, CASES["states"], Place()).passed


def test_a_prompt_whose_last_token_is_not_computed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    find = Cache.find
    monkeypatch.setattr(Cache, "find", lambda cache, row, length: find(cache, row, length + 1))
    assert not judge(OPTIMIZATION, CASES["a prompt that ends with a block"], Place()).passed


def test_the_cases_find_blocks_to_keep() -> None:
    for name, case in CASES.items():
        problem = case.make(Place())
        assert isinstance(problem, Resent)
        kept = sum(int(problem.fast()["cached"].sum()) for _ in [problem.next() for _ in range(case.steps)])
        assert (kept > 0) == (name != "every row idle, no context"), name
