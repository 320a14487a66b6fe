"""The kernels in the order of vLLM's own: that order written out, planted faults, guards, code for a GPU, replays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402
from compiling import compiled_for_a_gpu  # noqa: E402
from planting import with_a_fault  # noqa: E402

from optimized import captured, launching, pinning  # noqa: E402
from optimized.captured import REPLAY, UNSEEN, GraphCounts  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.context_norm_rope import OPTIMIZATION as CONTEXT  # noqa: E402
from optimized.context_norm_rope import cache_kernels, caching  # noqa: E402
from optimized.context_norm_rope.caching import Norms, Pages, apart, to_pages, why_not_pages  # noqa: E402
from optimized.head_order import WIDTHS, rms_norm_in_order, rms_norm_in_pairs  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.optimization import Counts  # noqa: E402
from optimized.qk_norm_rope import OPTIMIZATION as HEADS  # noqa: E402
from optimized.qk_norm_rope import pair_kernels, pairs  # noqa: E402

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: Patch) -> None:
    monkeypatch.setenv(launching.INTERPRET, "1")


# The order of the arithmetic


@pytest.mark.parametrize("width", WIDTHS)
def test_the_order_written_out_is_an_rms_norm(width: int) -> None:
    x, weight = torch.randn(64, width), torch.rand(width) + 0.5
    wanted = F.rms_norm(x.double(), (width,), weight.double(), 1e-6)
    torch.testing.assert_close(rms_norm_in_pairs(x, weight, 1e-6).double(), wanted, rtol=5e-7, atol=1e-6)


def test_it_is_another_order_than_pytorchs() -> None:
    x = torch.randn(512, 128, dtype=torch.float64).float()
    weight = torch.ones(128)
    assert not torch.equal(rms_norm_in_pairs(x, weight, 1e-6), rms_norm_in_order(x, weight, 1e-6))


def test_lanes_add_up_neighbours_and_then_pairs() -> None:
    x = torch.zeros(16, dtype=torch.float16)
    # In halves, 1 would be lost beside 4096 twice; beside its own lane's zeros and then 1 again it counts.
    x[0], x[8], x[9] = 1.0, 2.0, 3.0
    got = rms_norm_in_pairs(x, torch.ones(16, dtype=torch.float16), 0.0)
    torch.testing.assert_close(got, (x.double() * (14.0 / 16) ** -0.5).half(), rtol=1e-3, atol=1e-3)


# Planted faults


CACHE_FAULTS = {
    "all layers have the norm of the first": ("norms + layer * HEAD_DIM", "norms"),
    "all layers go to the first": ("tl.load(bases + layer) + slot", "slot"),
    "all layers have the slots of the first": ("tl.load(bases + LAYERS + layer)", "0"),
    "the first slots are no cells": ("(slot >= 0) & (low >= 0)", "(slot >= 9) & (low >= 0)"),
    "values are rotated keys": (
        "tl.store(value, tl.load(raw_value), mask=there)",
        "tl.store(value, turned_low, mask=there)",
    ),
    "values of another head": ("x + HEADS * HEAD_DIM", "x + HEAD_DIM"),
    "pairs are halves": ("[ROWS, 8, 2]), 2)", "[ROWS, 2, 8]), 1)"),
    "a part is left out": ("static_range(VECTOR)", "static_range(VECTOR - 1)"),
    "all turn as the first one": ("tl.load(positions + token)", "tl.load(positions + 0 * token)"),
    "a slot's page alone counts": ("slot % PAGE * slot_stride", "0"),
    "heads lie in one": ("keys + cell + head * head_stride + low", "keys + cell + low"),
    "the norm is not rounded": ("first = first.to(raw.dtype.element_ty).to(tl.float32)\n", "first = first + 0.0\n"),
    "no epsilon": ("(1.0 / HEAD_DIM) + epsilon", "(1.0 / HEAD_DIM)"),
}
PAIR_FAULTS = {
    "pairs are halves": ("[ROWS, 8, 2]), 2)", "[ROWS, 2, 8]), 1)"),
    "a part is left out": ("static_range(VECTOR)", "static_range(VECTOR - 1)"),
    "keys have the norm of queries": ("tl.where(is_query, query_norm, key_norm)", "query_norm"),
    "it turns the other way": ("first * cos - second * sin", "first * cos + second * sin"),
    "all turn as the first one": ("tl.load(positions + token)", "tl.load(positions + 0 * token)"),
    "the norm is not rounded": ("first = first.to(qkv.dtype.element_ty).to(tl.float32)", "first = first + 0.0"),
    "no epsilon": ("(1.0 / HEAD_DIM) + epsilon", "(1.0 / HEAD_DIM)"),
    "the second half is not written": ("tl.store(out + HEAD_DIM // 2,", "tl.store(out,"),
}


def shown(item: Any, beginning: str) -> bool:
    """Whether a case of vLLM's order is judged wrong, in either type: one shows the roundings, one the order."""
    some = ("two groups of layers", "heads of 128", "another epsilon", "odd shapes", "tokens without a cell")
    cases = [one for one in item.cases() if one.name.startswith(beginning) and one.name.endswith(some)]
    assert len(cases) >= 3
    return not all(judge(item, case, Place("cpu", dtype)).passed for dtype in ("float16", "float32") for case in cases)


@pytest.mark.parametrize("fault", CACHE_FAULTS)
def test_a_planted_fault_of_the_contexts_kernel_shows(fault: str, tmp_path: Path, monkeypatch: Patch) -> None:
    broken = with_a_fault(cache_kernels, *CACHE_FAULTS[fault], tmp_path)
    monkeypatch.setattr(cache_kernels, "norm_rotate_and_cache", broken.norm_rotate_and_cache)
    assert shown(CONTEXT, "pages")


@pytest.mark.parametrize("fault", PAIR_FAULTS)
def test_a_planted_fault_of_the_heads_kernel_shows(fault: str, tmp_path: Path, monkeypatch: Patch) -> None:
    broken = with_a_fault(pair_kernels, *PAIR_FAULTS[fault], tmp_path)
    monkeypatch.setattr(pair_kernels, "norm_in_pairs_and_rotate", broken.norm_in_pairs_and_rotate)
    assert shown(HEADS, "in pairs")


def test_nothing_shows_without_a_fault() -> None:
    assert not shown(CONTEXT, "pages")
    assert not shown(HEADS, "in pairs")


# Guards


def caches(dtype: Any = None, layers: int = 2) -> tuple[list[Any], list[Any], list[Any]]:
    """Keys, values and slots of some layers, as vLLM has them."""
    whole = [torch.zeros(5, 2, 4, 32, dtype=dtype or torch.float32).transpose(1, 2) for _ in range(layers)]
    halves = [one.split(16, dim=-1) for one in whole]
    return [half[0] for half in halves], [half[1] for half in halves], [torch.arange(3) for _ in range(layers)]


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        (0, lambda keys: [keys[0], keys[1][1:]], "not laid out alike"),
        (0, lambda keys: [one.unsqueeze(0) for one in keys], "not laid out alike"),
        (0, lambda keys: [one.view(torch.int32) for one in keys], "another dtype"),
        (1, lambda values: [values[1], values[0]], "values lie otherwise"),
        (2, lambda slots: [one.int() for one in slots], "not int64"),
        (2, lambda slots: [slots[0], slots[1][:2]], "one a token"),
    ],
)
def test_caches_of_another_kind_are_not_filled(part: int, change: Any, reason: str) -> None:
    given = list(caches())
    assert why_not_pages(*given, torch.float32) is None
    given[part] = change(given[part])
    assert reason in (why_not_pages(*given, torch.float32) or "")


def context(dtype: Any = None, width: int = 16) -> tuple[Any, ...]:
    """Projections of three tokens for two layers, their positions, and how they are normed."""
    options = {"dtype": dtype or torch.float32}
    raw, weights = torch.randn(3, 2, 2, 2, width, **options), torch.ones(2, width, **options)
    return raw, torch.arange(3), Norms(weights, torch.randn(40, width, **options), 1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda norms: replace(norms, table=norms.table[:, :8].contiguous()), "only a part of each head"),
        (lambda norms: replace(norms, table=norms.table.half()), "another dtype"),
        (lambda norms: replace(norms, weights=norms.weights.half()), "another dtype"),
        (lambda norms: replace(norms, table=norms.table.T.contiguous().T), "not dense"),
    ],
)
def test_norms_of_another_kind_are_not_taken(change: Any, reason: str) -> None:
    weight, norms = torch.zeros(4, 4), context()[2]
    assert caching.why_not(weight, 16, norms) is None
    assert reason in (caching.why_not(weight, 16, change(norms)) or "")
    assert "not proven for heads of 24" in (
        caching.why_not(weight, 24, replace(norms, table=torch.zeros(40, 24))) or ""
    )


def test_without_an_interpreter_there_is_nothing_to_run_it(monkeypatch: Patch) -> None:
    monkeypatch.delenv(launching.INTERPRET)
    assert "there is no GPU" in (caching.why_not(torch.zeros(4, 4), 16, context()[2]) or "")
    block = torch.zeros(3, 8 * 16), torch.arange(3), pairs.Pair(*(torch.ones(16),) * 2, torch.zeros(40, 16), 4, 2, 1e-6)
    assert "there is no GPU" in (pairs.why_not(*block) or "")


def test_it_writes_nowhere_else() -> None:
    keys, values, slots = caches()
    for part in (*keys, *values):
        part.fill_(7.0)
    slots[0][1] = slots[1][2] = -1
    to_pages(*context(), Pages.of(keys, values, slots), slots[0])
    for layer, used in enumerate(([0, 2], [0, 1])):
        for part in (keys[layer], values[layer]):
            written = (part != 7.0).flatten(2).any(-1).flatten().nonzero().flatten().tolist()
            assert written == used


# On an H200


@pytest.mark.parametrize("width", [64, 128, 256])
def test_both_compile_for_an_h200(width: int, tmp_path: Path, monkeypatch: Patch) -> None:
    raw, positions, norms = context(torch.bfloat16, width)
    whole = [torch.zeros(5, 2, 16, 2 * width, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)]
    keys, values = ([one.split(width, dim=-1)[half] for one in whole] for half in (0, 1))
    slots = [torch.arange(3)] * 2
    found = []
    for call in (
        lambda: to_pages(raw, positions, norms, Pages.of(keys, values, slots), slots[0]),
        lambda: apart(raw, positions, norms),
        lambda: pairs.norm_and_rotate(
            torch.randn(3, 6 * width).bfloat16(),
            positions,
            pairs.Pair(norms.weights[0], norms.weights[1], norms.table, 2, 2, 1e-6),
        ),
    ):
        found.append(compiled_for_a_gpu(launching, call, tmp_path, monkeypatch))
    assert [list(one) for one in found] == [["norm_rotate_and_cache"]] * 2 + [["norm_in_pairs_and_rotate"]]
    for (kernel,) in (one.values() for one in found):
        code = kernel.asm["ptx"]
        assert "rsqrt.approx" in code
        assert "st.local" not in code
        assert kernel.metadata.shared <= 1024


# In a server


def test_in_a_server_it_judges_itself_at_its_first_call_once_and_never_in_a_capture(monkeypatch: Patch) -> None:
    judged: list[str] = []
    monkeypatch.setattr(pinning, "_said", {})
    monkeypatch.setattr(pinning, "_disagreement", lambda item, place: judged.append(item.id))
    first, again = pinning.Judged(HEADS), pinning.Judged(HEADS)
    assert (first.why_not(True), judged) == (pinning.UNJUDGED, [])
    assert [one.why_not(False) for one in (first, first, again)] == [None] * 3
    assert (first.why_not(True), judged) == (None, [HEADS.id])


def test_a_server_whose_order_is_another_one_is_told_so(tmp_path: Path, monkeypatch: Patch) -> None:
    broken = with_a_fault(pair_kernels, *PAIR_FAULTS["pairs are halves"], tmp_path)
    monkeypatch.setattr(pair_kernels, "norm_in_pairs_and_rotate", broken.norm_in_pairs_and_rotate)
    monkeypatch.setattr(pinning, "_said", {})
    why = pinning.Judged(HEADS).why_not(False) or ""
    assert why.startswith(f"{HEADS.id} cannot be applied: with torch")
    assert "differ from its reference's" in why


# Replays


class Manager:
    """Replays graphs, as vLLM's does."""

    def __init__(self) -> None:
        self.replayed: list[int] = []

    def run_fullgraph(self, graph: Any, *others: Any) -> int:
        self.replayed.append(graph.tokens)
        return graph.tokens


def test_a_replay_counts_as_what_was_captured_and_two_may_follow_one_manager(monkeypatch: Patch) -> None:
    on, manager, (three, four) = torch.zeros(1), Manager(), (SimpleNamespace(tokens=n) for n in (3, 4))
    said = [Counts(), Counts()]
    followers = [GraphCounts(one) for one in said]
    for one in followers:
        one.follow(manager, lambda graph: graph.tokens)
        one.follow(manager, lambda graph: graph.tokens)
    monkeypatch.setattr(captured, "capturing", lambda tensor: True)
    followers[0].note(on, 3, None)
    followers[1].note(on, 3, None)
    followers[1].note(on, 3, "a layer of it objects")
    assert (said[0].hits, said[1].hits) == (0, 0)
    monkeypatch.undo()
    assert [manager.run_fullgraph(three, "more"), manager.run_fullgraph(four)] == [3, 4]
    assert manager.replayed == [3, 4]
    assert (said[0].hits, dict(said[0].fallbacks)) == (1, {UNSEEN: 1})
    assert (said[1].hits, dict(said[1].fallbacks)) == (0, {"a layer of it objects": 1, UNSEEN: 1})
    followers[0].note(on, 3, None)
    assert said[0].hits == 2, "outside of a capture it counts at once"
    followers[0].close()
    manager.run_fullgraph(three)
    assert (said[0].hits, said[1].fallbacks.total()) == (2, 3)


def test_what_is_put_into_the_managers_class_later_is_still_called(monkeypatch: Patch) -> None:
    manager, counts, seen = Manager(), Counts(), []
    GraphCounts(counts).follow(manager, lambda graph: graph.tokens)
    assert REPLAY in vars(manager)
    original = Manager.run_fullgraph
    monkeypatch.setattr(Manager, REPLAY, lambda self, graph: (seen.append(graph), original(self, graph))[1])
    assert manager.run_fullgraph(SimpleNamespace(tokens=2)) == 2
    assert (len(seen), manager.replayed) == (1, [2])


def test_a_graph_that_cannot_be_told_is_an_error_of_ours_and_is_replayed_all_the_same() -> None:
    manager, counts = Manager(), Counts()
    GraphCounts(counts).follow(manager, lambda graph: graph.nothing)
    assert manager.run_fullgraph(SimpleNamespace(tokens=2)) == 2
    assert (counts.hits, counts.errors.total()) == (0, 1)
    assert "nothing" in next(iter(counts.errors))
