"""Every optimization inside the cycle: tokens and drafts are the same on and off, and it fires where it says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from every_one import ALL, BOTH_FORMS, FIRING, WITH_DRAFTERS, each, where_it_fires  # noqa: E402
from small_cycles import (  # noqa: E402
    OUTPUT,
    SHORT,
    SMALL,
    WITH_STATES,
    expected,
    prompts_for,
    run,
    small,
    source_for,
    stock,
)

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.judging import TOLERANCES  # noqa: E402
from optimized.optimization import Agreement, Optimization  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, Generation  # noqa: E402
from optimized.reference_cycle.geometry import Geometry, Rope  # noqa: E402
from optimized.reference_cycle.settings import DRAFTERS, Settings  # noqa: E402

CLOSE = TOLERANCES["float32"]
Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("interpreted")


def followed(log: DraftLog) -> DraftLog:
    """The drafts of requests that the drafter follows; the others' logits mean nothing."""
    return DraftLog({place: draft for place, draft in log.drafts.items() if int(draft.tokens.max()) >= 0})


def geometry_of(item: Optimization, number: int) -> Geometry:
    """One of two in turns, or the one without which it has nothing to do."""
    return WITH_STATES if item.needs_states or number % 2 else SMALL


def named(value: Any) -> Any:
    """How an optimization or a geometry is called among a test's parameters."""
    return getattr(value, "id", getattr(value, "name", value))


def same_on_and_off(settings: Settings, mode: str, ids: list[str]) -> Generation:
    """A run with them, which made no error, gave the tokens of a run without, and drafted as near as they declare."""
    (off, log), tokens = stock(settings, mode), expected(settings)
    optimized.apply(ids)
    on, other = run(settings, mode)
    assert on.tokens == off.tokens == tokens
    assert on.acceptance == off.acceptance
    assert [entry["errors"] for entry in optimized.counts()] == [0] * len(ids)
    if settings.drafter != "none":
        exact = all(ALL[name].agreement is Agreement.BITWISE for name in ids)
        assert compare_drafts(log, other).agrees(0.0 if exact else CLOSE)
    return on


def bins(generation: Generation, settings: Settings) -> list[int]:
    return generation.histogram(settings.speculative)


@pytest.mark.parametrize(("drafter", "geometry"), list(product(DRAFTERS, (SMALL, WITH_STATES))), ids=str)
def test_what_is_forced_accepts_any_number_of_drafts(drafter: str, geometry: Geometry) -> None:
    settings = small(geometry, drafter=drafter)
    assert min(bins(stock(settings, "forced")[0], settings)) > 0


@pytest.mark.parametrize(
    ("item", "drafter", "mode", "geometry"),
    [
        *((item, drafter, "forced", geometry_of(item, number)) for number, (item, drafter) in enumerate(FIRING)),
        *((item, item.drafters[0], "drafter", geometry_of(item, n)) for n, item in enumerate(ALL.values())),
    ],
    ids=named,
)
def test_it_fires_where_it_says_once_a_cycle_and_changes_nothing(
    item: Optimization, drafter: str, mode: str, geometry: Geometry
) -> None:
    room = SHORT if mode == "drafter" else {}
    on = same_on_and_off(small(geometry, drafter=drafter, **room), mode, [item.id])
    (said,) = optimized.counts()
    assert json.loads(json.dumps(said)) == said
    assert said == {"id": item.id, "hits": on.cycles, "fallbacks": 0, "errors": 0, "reasons": {}}
    assert optimized.warnings() == []


@where_it_fires
def test_each_alone_for_one_request_of_seven_drafts(item: Optimization, drafter: str) -> None:
    geometry = WITH_STATES if item.needs_states else SMALL
    on = same_on_and_off(small(geometry, drafter=drafter, batch=1, draft_length=7), "forced", [item.id])
    (said,) = optimized.counts()
    assert (said["hits"], said["fallbacks"]) == (on.cycles, 0)


@pytest.mark.parametrize(
    ("item", "drafter"), [(item, drafter) for item, drafter in FIRING if item in BOTH_FORMS], ids=named
)
def test_it_changes_nothing_where_no_kernel_runs(item: Optimization, drafter: str, monkeypatch: Patch) -> None:
    monkeypatch.delenv(launching.INTERPRET)
    on = same_on_and_off(small(drafter=drafter), "forced", [item.id])
    (said,) = optimized.counts()
    assert (said["hits"], said["fallbacks"]) == (on.cycles, 0)


IDLE = [
    *((item, drafter, WITH_STATES) for item, drafter in WITH_DRAFTERS if drafter not in item.drafters),
    *((item, drafter, SMALL) for item, drafter in FIRING if item.needs_states),
]


@pytest.mark.parametrize(("item", "drafter", "geometry"), IDLE, ids=named)
def test_it_fires_nowhere_else(item: Optimization, drafter: str, geometry: Geometry) -> None:
    same_on_and_off(small(geometry, drafter=drafter, **SHORT), "drafter", [item.id])
    (said,) = optimized.counts()
    assert (said["hits"], said["errors"]) == (0, 0)
    assert len(optimized.warnings()) == 1


@each
def test_without_a_drafter_the_tokens_are_the_same(item: Optimization) -> None:
    same_on_and_off(small(WITH_STATES, drafter="none", **SHORT), "drafter", [item.id])


@pytest.mark.parametrize("drafter", [*DRAFTERS, "none"])
def test_all_of_them_at_once_change_nothing(drafter: str) -> None:
    same_on_and_off(small(SMALL, drafter=drafter, **SHORT), "drafter", list(ALL))
    optimized.revert()
    same_on_and_off(small(WITH_STATES, drafter=drafter), "drafter" if drafter == "none" else "forced", list(ALL))


@pytest.mark.parametrize(
    "shape", [{"batch": 1, "draft_length": 7}, {"batch": 5, "draft_length": 1}, {"dtype": "float64"}]
)
def test_all_of_them_at_other_sizes(shape: dict[str, Any]) -> None:
    settings = small(WITH_STATES, **shape)
    _, log = stock(settings, "forced")
    optimized.apply(ALL)
    on, other = run(settings, "forced")
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": (None, 5), "causal_windows": True},
        {"sinks": True, "windows": (4,)},
        {"rope": Rope(factor=8.0, original_context=32, truncate=False)},
        {"rope": Rope(partial=0.5)},
    ],
    ids=["causal windows", "sinks", "YaRN", "partial rotation"],
)
def test_all_of_them_with_other_attention(changes: dict[str, Any]) -> None:
    settings = small(replace(SMALL, dflash=replace(SMALL.dflash, **changes)))
    _, log = stock(settings, "forced")
    optimized.apply(ALL)
    on, other = run(settings, "forced")
    assert on.tokens == expected(settings)
    assert [said["errors"] for said in optimized.counts()] == [0] * len(ALL)
    assert compare_drafts(log, other).agrees(CLOSE)


@pytest.mark.parametrize("limit", [10, 17, 25])
@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle"])
def test_a_context_longer_than_the_drafter_holds(drafter: str, limit: int) -> None:
    settings = small(replace(SMALL, longest_draft_context=limit), drafter=drafter)
    _, log = stock(settings, "forced")
    optimized.apply(ALL)
    on, other = run(settings, "forced")
    assert on.tokens == expected(settings)
    assert {place: draft.tokens.tolist() for place, draft in log.drafts.items()} == {
        place: draft.tokens.tolist() for place, draft in other.drafts.items()
    }
    assert limit < min(map(len, prompts_for(settings))) or compare_drafts(followed(log), followed(other)).agrees(CLOSE)


@where_it_fires
def test_switching_between_steps_changes_nothing(item: Optimization, drafter: str) -> None:
    if not item.live_switchable:
        pytest.skip("it is not switchable between steps")
    settings = small(WITH_STATES, drafter=drafter)
    _, log = stock(settings, "forced")
    other = DraftLog()
    cycle = Cycle(settings, source_for("forced", settings), other)
    requests, steps, hits = cycle.add(prompts_for(settings), OUTPUT), 0, 0
    while not cycle.scheduler.idle():
        if steps % 3 == 2:
            hits += sum(said["hits"] for said in optimized.revert())
        else:
            optimized.apply([item.id])
        cycle.forget_graphs()
        cycle.step()
        steps += 1
    assert hits > 0
    assert [request.tokens for request in requests] == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


@pytest.mark.parametrize(
    ("name", "changes", "warning"),
    [
        ("context-kv-cache", {"drafter": "dspark"}, "context-kv-cache was on and no call reached it"),
        ("query-build", {"drafter": "none"}, "query-build was on and no call reached it"),
        ("verify-k-plus-one", {"draft_length": 1}, "never fired: .* most because with K = 1 there is no filler"),
        ("verify-k-plus-one", {"drafter": "none"}, "never fired: .* most because nothing is drafted"),
    ],
)
def test_a_switch_that_never_fired_is_told(name: str, changes: dict[str, Any], warning: str) -> None:
    optimized.apply([name])
    run(small(**changes), "drafter")
    (said,) = optimized.warnings()
    assert re.search(warning, said)
