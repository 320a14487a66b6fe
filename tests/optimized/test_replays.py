"""What is built for a replay is left out, or built again, around a small drafter; and what shows where it is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.skip_draft_rebuild import replays  # noqa: E402
from optimized.skip_draft_rebuild.reference import SIGHT, Builder, Shape, Step  # noqa: E402
from optimized.skip_draft_rebuild.replays import NO_GRAPH, REBUILT, WINDOWED, WithoutRebuild, WithRebuild  # noqa: E402

FIX = optimized.discover()["skip-draft-rebuild"]
STOCK = optimized.discover()["stock-skip-draft-rebuild"]


def drafter(*builders: Builder, batch: int = 3, restored: bool = False) -> Step:
    return Step(Shape(batch, 3), (2, 3), builders or (Builder(),), Place(), restored=restored)


def counted(step: Step) -> dict[str, Any]:
    return step.replays.counts.as_dict("x")


def test_nothing_is_built_for_a_replay_and_all_is_for_a_draft_without_a_graph() -> None:
    for batch, hits in ((3, 4), (8, 4), (9, 0)):
        step = drafter(batch=batch)
        for _ in range(4):
            step.fast()
            step.next()
        assert step.built == 4 - hits
        reasons = {} if hits else {NO_GRAPH: 4}
        assert counted(step) == {"id": "x", "hits": hits, "fallbacks": 4 - hits, "errors": 0, "reasons": reasons}
        assert step.kv_cache_config.kv_cache_groups == ("one",)


def test_restored_all_is_built_for_a_replay_too() -> None:
    for builder, reasons in ((Builder(), {}), (Builder(SIGHT), {WINDOWED: 4})):
        step = drafter(builder, restored=True)
        before = step.supports_decode_metadata_update
        for _ in range(4):
            step.fast()
            step.next()
        assert step.built == 4
        assert counted(step)["reasons"] == reasons
        assert counted(step)["hits"] == (0 if reasons else 4)
        assert step.supports_decode_metadata_update is before


def test_what_vllm_rebuilds_by_itself_is_no_hit() -> None:
    step = drafter(restored=True)
    step.supports_decode_metadata_update = False
    step.fast()
    assert (step.built, counted(step)["reasons"]) == (1, {REBUILT: 1})


@pytest.mark.parametrize("name", ["R-SWA", "a strange builder"])
def test_a_gate_that_lets_too_much_through_shows_in_the_drafts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = [case for case in FIX.cases() if case.name == name]
    assert judge(FIX, case, Place()).passed
    monkeypatch.setattr(replays, "why_needed", lambda *_: None)
    judged = judge(FIX, case, Place())
    assert not judged.passed
    assert judged.outside > 0


def test_a_switch_that_restores_nothing_fails_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WithRebuild, "treats", lambda *_: False)
    failed = [case.name for case in STOCK.cases() if not judge(STOCK, case, Place()).passed]
    graphless = ["more requests than any graph", "R-SWA"]
    assert failed == [case.name for case in STOCK.cases() if case.name not in graphless]


def without() -> tuple[WithoutRebuild, Any]:
    step = drafter()
    return WithoutRebuild(Builder), step


def dispatched(mode: str) -> Any:
    return lambda: (SimpleNamespace(cg_mode=SimpleNamespace(name=mode)), None)


def test_what_is_held_is_given_back_where_the_proposal_breaks_off() -> None:
    for ends in ("settles", "dispatches", "closes"):
        switch, step = without()
        config = step.kv_cache_config
        switch.dispatching(dispatched("FULL"))()
        assert switch.building(lambda *_: "built")(step) is None
        assert step.kv_cache_config is not config
        {
            "settles": switch.settling(lambda: None),
            "dispatches": switch.dispatching(dispatched("NONE")),
            "closes": switch.close,
        }[ends]()
        assert step.kv_cache_config is config


def test_a_build_without_a_dispatch_before_it_is_not_ours() -> None:
    switch, step = without()
    build = switch.building(lambda *_: "built")
    assert build(step) == "built"
    switch.dispatching(dispatched("FULL"))()
    assert [build(step), build(step)] == [None, "built"]
    assert (switch.counts.hits, switch.counts.fallbacks.total()) == (1, 0)


def test_a_dispatch_that_fails_is_raised_and_leaves_no_word_behind() -> None:
    switch, step = without()
    switch.dispatching(dispatched("FULL"))()

    def fails() -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        switch.dispatching(fails)()
    assert switch.building(lambda *_: "built")(step) == "built"


def test_what_a_dispatch_returns_that_we_do_not_understand_is_counted_and_nothing_is_left_out() -> None:
    switch, step = without()
    assert switch.dispatching(lambda: None)() is None
    assert switch.building(lambda *_: "built")(step) == "built"
    assert list(switch.counts.errors) == ["TypeError: 'NoneType' object is not subscriptable"]


def test_an_attribute_that_cannot_be_set_is_counted_and_nothing_is_left_out() -> None:
    switch, step = without()

    class Sealed(SimpleNamespace):
        def __setattr__(self, name: str, value: object) -> None:
            raise TypeError("sealed")

    sealed = Sealed(**vars(step))
    switch.dispatching(dispatched("FULL"))()
    assert switch.building(lambda *_: "built")(sealed) == "built"
    assert (switch.counts.hits, dict(switch.counts.errors)) == (0, {"TypeError: sealed": 1})
    switch.settling(lambda: None)()
