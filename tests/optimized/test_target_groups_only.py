"""Which attention groups a target's step builds for, when for all, and what shows where a target's group is dropped."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.target_groups_only import groups  # noqa: E402
from optimized.target_groups_only.groups import TargetGroups, name_of, without  # noqa: E402
from optimized.target_groups_only.reference import Drafter, Group, Runner, State  # noqa: E402

ITEM = optimized.discover()["target-groups-only"]
CASES = {case.name: case for case in ITEM.cases()}
Patch = pytest.MonkeyPatch


def switch() -> TargetGroups:
    return TargetGroups({name_of(State)}, {name_of(Drafter)})


def group(*names: str) -> Any:
    return SimpleNamespace(layer_names=list(names))


def runner() -> Runner:
    """One cache of the target's and one of the drafter's."""
    both = [[Group(["t"], 2, 1, "cpu")], [Group(["d"], 2, 1, "cpu")]]
    return Runner(both, State(), Drafter([[], [Group(["d"], 2, 1, "cpu")]]), {})


def built(one: TargetGroups, of: Runner, dummy: bool = False, attn_groups: Any = None, **named: Any) -> list[str]:
    """The layers that a step builds for."""
    tables, batch = torch.zeros(2, 3, 1, dtype=torch.int64), (torch.arange(2), torch.arange(2))
    if not dummy:
        one.stepping(Runner.prepare_attn)(of, tables)
    return list(of.model_state.prepare_attn(batch, tables, attn_groups or of.attn_groups, **named))


def test_groups_stay_by_cache_and_those_of_both_stay() -> None:
    first, second, both = group("t"), group("d", "e"), group("t2", "d2")
    given = [[first, second], [second], [both]]
    assert without(given, {"d", "e", "d2"}) == [[first], [], [both]]
    assert given == [[first, second], [second], [both]]
    assert without([[first], [both]], {"d2"}) == groups.NONE_ALONE
    assert without([[second]], {"d", "e"}) == groups.ALL_ALONE


def test_a_stand_in_is_for_one_call_of_a_step() -> None:
    one, of = switch(), runner()
    assert built(one, of) == ["t"]
    assert vars(of.model_state) == {}
    assert built(one, of, dummy=True) == ["t", "d"]
    assert built(one, of, for_capture=True) == ["t", "d"]
    assert built(one, of, dummy=True) == ["t", "d"]
    assert built(one, of) == ["t"]
    assert (one.counts.hits, dict(one.counts.fallbacks)) == (2, {groups.CAPTURE: 1})


def test_other_groups_are_all_built_for() -> None:
    one, of = switch(), runner()
    assert built(one, of, attn_groups=[*of.attn_groups]) == ["t", "d"]
    assert dict(one.counts.fallbacks) == {groups.OTHER: 1}


def test_nothing_is_left_of_a_step_that_broke_off() -> None:
    one, of = switch(), runner()
    step = one.stepping(Runner.prepare_attn)
    step(of, torch.zeros(1))
    assert list(vars(of.model_state)) == [groups.METHOD]
    step(of, torch.zeros(1))
    one.close()
    assert vars(of.model_state) == {}
    step(of, torch.zeros(1))
    of.vllm_config.kv_transfer_config = "one"
    assert built(one, of) == ["t", "d"]
    assert dict(one.counts.fallbacks) == {groups.CONNECTOR: 1}


def test_a_runner_without_a_drafter_builds_for_all() -> None:
    one, of = switch(), runner()
    of.speculator = None  # type: ignore[assignment]
    assert built(one, of) == ["t", "d"]
    assert dict(one.counts.fallbacks) == {groups.STRANGE_DRAFTER: 1}


def test_an_error_of_ours_is_counted_and_all_are_built_for(monkeypatch: Patch) -> None:
    one, of = switch(), runner()
    with monkeypatch.context() as patch:
        patch.setattr(groups, "without", lambda *_: 1 / 0)
        assert built(one, of) == ["t", "d"]
    assert dict(one.counts.errors) == {"ZeroDivisionError: division by zero": 1}
    assert built(one, of) == ["t"]


def test_no_runner_is_kept_alive() -> None:
    one, of = switch(), runner()
    assert built(one, of) == ["t"]
    one.stepping(Runner.prepare_attn)(of, torch.zeros(1))
    seen = [weakref.ref(of), weakref.ref(of.model_state), weakref.ref(of.speculator)]
    del of
    gc.collect()
    assert [each() for each in seen] == [None] * 3
    one.close()


@pytest.mark.parametrize("name", ["all accepted", "one cache, a group each", "20 steps"])
def test_a_group_of_the_targets_that_is_dropped_shows(name: str, monkeypatch: Patch) -> None:
    assert judge(ITEM, CASES[name], Place()).passed
    monkeypatch.setattr(groups, "without", lambda given, _: [[], *given[1:]])
    judged = judge(ITEM, CASES[name], Place())
    assert any("is given by one side only" in fault for fault in judged.faults)
