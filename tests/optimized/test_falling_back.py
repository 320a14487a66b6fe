"""Guards and failures: stock answers, which is counted and told; a planted fault shows in the drafts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from every_one import ALL  # noqa: E402
from planting import failing_after  # noqa: E402
from small_cycles import OUTPUT, WITH_STATES, expected, prompts_for, run, small, source_for, stock  # noqa: E402

import optimized  # noqa: E402
from optimized.context_kv_cache import cache  # noqa: E402
from optimized.context_kv_cache.cache import Cache  # noqa: E402
from optimized.judging import TOLERANCES  # noqa: E402
from optimized.optimization import LONGEST_REASON, MOST_REASONS, Counts  # noqa: E402
from optimized.query_build import lookup  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate  # noqa: E402
from optimized.reference_cycle.dflash import DFlashDrafter  # noqa: E402
from optimized.reference_cycle.drafter import Drafter  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from optimized.reference_cycle.target import Target  # noqa: E402
from optimized.verify_k_plus_one import rows  # noqa: E402

CLOSE = TOLERANCES["float32"]
Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("interpreted")


def layers_of(settings: Settings) -> list[Any]:
    drafter = Cycle(settings).drafter
    assert isinstance(drafter, DFlashDrafter)
    return drafter.layers


def test_the_cache_refuses_layers_that_cannot_share_it() -> None:
    first, second = layers_of(small())
    assert cache.why_not([first, second], 40) is None
    norms = second.norms
    others = {
        "heads": replace(second, norms=replace(norms, heads=2)),
        "shape": replace(second, qkv=second.qkv[1:]),
        "rotary table": replace(second, norms=replace(norms, table=norms.table.clone())),
        "quantized": replace(second, qkv=second.qkv.to(torch.int8)),
    }
    for word, other in others.items():
        assert word in (cache.why_not([first, other], 40) or "")
    assert "ends before" in (cache.why_not([first, second], 10_000) or "")


def test_a_refused_drafter_runs_stock_and_says_why(monkeypatch: Patch) -> None:
    settings = small()
    _, log = stock(settings)
    monkeypatch.setattr(cache, "why_not", lambda *_: "it is a test")
    optimized.apply(["context-kv-cache"])
    on, other = run(settings)
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"it is a test": said["fallbacks"]})
    assert said["fallbacks"] >= on.cycles
    assert compare_drafts(log, other).agrees()


def test_a_cycle_whose_graphs_are_older_than_the_switch_is_no_hit() -> None:
    settings = small()
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings), OUTPUT)
    cycle.step()
    optimized.apply(["context-kv-cache"])
    cycle.drafter.advance()  # as where a graph is replayed and nothing else is called
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"its graphs were captured before the switch": 1})


def test_hits_are_cycles_and_a_revert_drops_the_graphs(monkeypatch: Patch) -> None:
    settings, forgotten = small(), []
    optimized.apply(["context-kv-cache", "query-build"])
    cycle = Cycle(settings, source_for("forced", settings))
    generation = generate(cycle, prompts_for(settings), OUTPUT)
    monkeypatch.setattr(Drafter, "forget_graphs", lambda drafter: forgotten.append(drafter))
    assert {said["hits"] for said in optimized.revert()} == {generation.cycles}
    assert cycle.drafter in forgotten


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle"])
def test_on_a_gpu_switches_take_effect_in_graphs_captured_anew(drafter: str) -> None:
    settings = small(WITH_STATES, drafter=drafter, device="cuda")
    _, log = stock(settings, "forced")
    other = DraftLog()
    cycle = Cycle(settings, source_for("forced", settings), other)
    requests, steps = cycle.add(prompts_for(settings), OUTPUT), 0
    while not cycle.scheduler.idle():
        optimized.apply(ALL if steps % 6 < 4 else [])
        cycle.forget_graphs()
        cycle.step()
        if steps % 6 == 3:
            assert all(said["errors"] == 0 for said in optimized.revert())
        steps += 1
    assert [request.tokens for request in requests] == expected(settings)
    assert compare_drafts(log, other).agrees(1e-3)


@pytest.mark.parametrize("calls", [0, 1, 4, 9])
@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        (Cache, "write", "context-kv-cache"),
        (Cache, "seat", "context-kv-cache"),
        (Cache, "attend", "context-kv-cache"),
        (lookup, "build", "query-build"),
    ],
)
def test_a_failure_falls_back_and_is_counted(
    owner: Any, method: str, name: str, calls: int, monkeypatch: Patch
) -> None:
    settings = small()
    _, log = stock(settings)
    optimized.apply([name])
    monkeypatch.setattr(owner, method, failing_after(calls, getattr(owner, method)))
    on, other = run(settings)
    (said,) = optimized.revert()
    assert said["errors"] > 0
    assert said["reasons"]["RuntimeError: planted"] == said["errors"]
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


def test_the_lookup_refuses_a_strange_verdict() -> None:
    settings = small()
    drafter = Cycle(settings).drafter
    accepted, counts = torch.zeros(2, 4, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    assert lookup.why_not(drafter, accepted, counts) is None
    assert "shape" in (lookup.why_not(drafter, accepted[:, 1:], counts) or "")
    assert "int32" in (lookup.why_not(drafter, accepted.long(), counts) or "")


def test_rows_are_left_alone_where_nothing_is_saved() -> None:
    for changes, reason in (({"drafter": "none"}, "nothing"), ({"draft_length": 1}, "K = 1"), ({}, None)):
        said = rows.why_not(Target(small(**changes)))
        assert (reason in said) if reason and said else said is reason


def test_errors_are_told_apart_within_limits() -> None:
    counts = Counts()
    for number in range(1000):
        counts.failed(ValueError(f"address {number}" + "!" * 500 + "\nand a second line"))
        counts.failed(KeyError())
    said = counts.as_dict("x")
    assert said["errors"] == 2000
    assert len(said["reasons"]) == MOST_REASONS + 1
    assert said["reasons"]["KeyError"] == 1000
    assert said["reasons"]["other errors"] == 1000 - (MOST_REASONS - 1)
    assert max(map(len, said["reasons"])) == len("ValueError: ") + LONGEST_REASON
    assert not any("\n" in reason for reason in said["reasons"])


def test_the_warning_names_the_most_frequent_reason() -> None:
    counts = Counts(0, Counter({"a": 1, "b": 3}), Counter({"c": 2}))
    assert counts.warning("x") == "x was on and never fired: 6 calls fell back, most because b"
    assert Counts(1).warning("x") is None


def faulty(monkeypatch: Patch, fault: str) -> None:
    write, build = Cache.write, lookup.build
    if fault == "positions":
        monkeypatch.setattr(Cache, "write", lambda self, *a: write(self, *a[:3], (a[3] + 1) % len(self.table)))
    elif fault == "norms":
        monkeypatch.setattr(Cache, "write", lambda self, *a: write(replace(self, norms=self.norms.flip(0)), *a))
    elif fault == "mask":
        monkeypatch.setattr(lookup, "build", lambda *a: (build(*a), a[-1].noise[:, 1:].add_(0.1)))


@pytest.mark.parametrize("fault", ["positions", "norms", "mask"])
def test_a_planted_fault_shows_in_the_drafts_though_not_in_the_tokens(fault: str, monkeypatch: Patch) -> None:
    settings = small()
    _, log = stock(settings)
    faulty(monkeypatch, fault)
    optimized.apply(ALL)
    on, other = run(settings)
    assert on.tokens == expected(settings)
    assert not compare_drafts(log, other).agrees(CLOSE)
