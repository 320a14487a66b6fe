"""propose() of the drafter of every supported vLLM on its own classes: what is built for a FULL replay, and when."""

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
DRAFTER = Path(__file__).with_name("drafter_of_this_version.py")
ID, STOCK_ID = "skip-draft-rebuild", "stock-skip-draft-rebuild"
BEFORE, SINCE = (optimized.discover()[name].versions() for name in (ID, STOCK_ID))
NO_GRAPH = "the draft runs without a FULL graph"
REPLAYS = 3
"""Of the four proposals in each situation; for the last one no graph is large enough."""
GATED = {
    "no builder": "the drafter has no metadata builder",
    "one of a subclass": "OfTriton may keep something for the graph",
    "the base's default": "Plain may keep something for the graph",
    "r-swa": "a builder keeps the prefixes of R-SWA for the graph",
}
Facts = dict[str, Any]


@cache
def facts_of(version: str) -> Facts:
    """What that version's drafter did."""
    return printed_by(DRAFTER, version, str(source_tree(version)))


@pytest.fixture(params=BEFORE)
def drafter(request: pytest.FixtureRequest) -> Facts:
    """Of a version without the fix, which is switched on."""
    return facts_of(request.param)


@pytest.fixture(params=SINCE)
def restored(request: pytest.FixtureRequest) -> Facts:
    """Of a version that has the fix, whose stock is restored."""
    return facts_of(request.param)


@pytest.fixture(params=[*BEFORE, *SINCE])
def either(request: pytest.FixtureRequest) -> Facts:
    """Of any version, with what can be switched on there."""
    return facts_of(request.param)


def of(proposals: list[Facts], name: str) -> list[Any]:
    return [one[name] for one in proposals]


def test_every_version_is_tried() -> None:
    assert [*BEFORE, *SINCE] == ["0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]


def test_a_full_replay_has_hits_and_nothing_is_built_for_it(drafter: Facts) -> None:
    for situation, groups in (("triton", 1), ("two groups", 2), ("dspark", 1)):
        stock, on = drafter[situation]["stock"], drafter[situation]["on"]
        assert of(stock, "replays") == of(on, "replays") == [1, 1, 1, 0]
        assert (of(stock, "builds"), of(stock, "slots")) == ([groups] * 4, [[groups]] * 4)
        assert (of(on, "builds"), of(on, "slots")) == ([0, 0, 0, groups], [[0], [0], [0], [groups]])
        counts = {"id": ID, "hits": REPLAYS, "fallbacks": 1, "errors": 0, "reasons": {NO_GRAPH: 1}}
        assert drafter[situation]["counts"] == counts


def test_a_restored_replay_has_hits_and_metadata_is_built_for_it_but_no_slot_mappings(restored: Facts) -> None:
    for situation, groups in (("triton", 1), ("two groups", 2), ("dspark", 1)):
        stock, on = restored[situation]["stock"], restored[situation]["on"]
        assert of(stock, "replays") == of(on, "replays") == [1, 1, 1, 0]
        assert of(stock, "builds") == [0, 0, 0, groups]
        assert of(on, "builds") == [groups] * 4
        assert of(stock, "slots") == of(on, "slots") == [[], [], [], [groups]]
        counts = {"id": STOCK_ID, "hits": REPLAYS, "fallbacks": 1, "errors": 0, "reasons": {NO_GRAPH: 1}}
        assert restored[situation]["counts"] == counts


@pytest.mark.parametrize("situation", GATED)
def test_a_builder_that_is_not_surely_harmless_is_left_as_it_is(either: Facts, situation: str) -> None:
    assert either[situation]["on"] == either[situation]["stock"]
    counts = either[situation]["counts"]
    assert (counts["hits"], counts["errors"]) == (0, 0)
    assert counts["reasons"] == {GATED[situation]: REPLAYS, NO_GRAPH: 1}


def test_a_context_that_is_spread_over_ranks_is_left_as_it_is(either: Facts) -> None:
    assert either["spread"] == ["the context is spread over ranks", "the context is spread over ranks", None]


def test_without_a_graph_the_layers_get_what_they_always_got(either: Facts) -> None:
    for situation in ("triton", "two groups", "dspark"):
        metadata, slots = either[situation]["on"][-1]["metadata"]
        assert either[situation]["stock"][-1]["metadata"] == [metadata, slots]
        assert metadata
        assert slots


def test_nothing_stays_behind(either: Facts) -> None:
    for situation in ("triton", "two groups", "dspark", *GATED):
        one = either[situation]
        assert one["off"] == one["stock"]
        assert all(of(one[phase], name) == [True] * 4 for phase in ("on", "off") for name in ("drafted", "as before"))


def test_a_failure_of_ours_leaves_it_as_it_is_and_is_counted(either: Facts) -> None:
    counts = either["failing"]["counts"]
    assert (counts["hits"], counts["errors"], counts["reasons"]) == (0, 1, {"RuntimeError: planted": 1})
    assert either["failing"]["proposed"] == either["triton"]["stock"][1]


@pytest.mark.parametrize("first", ["off", "on"])
def test_it_is_switched_while_a_recording_runs_and_no_row_goes_missing(either: Facts, first: str) -> None:
    found = either[f"recorded, {first} first"]
    since = "capturing" in either
    assert found["rows"] == {"draft.propose": 10, "draft.metadata": 5 if since else 15}
    assert (found["builds"], found["errors"]) == (5, "")


def test_a_graph_that_is_captured_meanwhile_still_updates_its_metadata(restored: Facts) -> None:
    assert restored["capturing"] is True
