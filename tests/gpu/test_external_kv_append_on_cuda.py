"""external-kv-append on a GPU: bfloat16 against float64, in a graph, three arms beside each other, and in a cycle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, microseconds, nodes  # noqa: E402

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.external_kv_append import OPTIMIZATION  # noqa: E402
from optimized.external_kv_append.attention import append_inside, append_outside  # noqa: E402
from optimized.external_kv_append.reference import Blocks, Shape  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.reference_cycle import attention  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import Geometry  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402

PLACE = Place("cuda", "bfloat16")
WIDE = Shape(block=8, key_heads=8, group=4, head_dim=128, columns=600)


def outside(problem: Blocks) -> Any:
    return append_outside(problem.block, problem.pools, (problem.slots, problem.columns), problem.sight)


def inside(problem: Blocks) -> Any:
    return append_inside(problem.block, problem.pools, (problem.slots, problem.columns), problem.sight)


def close(seen: Any, wanted: Any) -> bool:
    allowed = TOLERANCES["bfloat16"] * (1 + wanted.double().abs())
    return bool(((seen.double() - wanted.double()).abs() <= allowed).all())


@pytest.mark.parametrize("case", OPTIMIZATION.cases(), ids=lambda case: case.name)
def test_it_agrees_with_float64(case: Any) -> None:
    for dtype in TOLERANCES:
        judged = judge(OPTIMIZATION, case, Place("cuda", dtype))
        assert judged.passed, judged


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("drafts", [3, 7, 10, 15])
@pytest.mark.parametrize("sight", [{}, {"window": 100, "causal": True, "sinks": True}], ids=["all", "a causal window"])
def test_a_graph_is_right_for_blocks_that_are_rewritten_in_place(
    batch: int, drafts: int, sight: dict[str, Any]
) -> None:
    shape = replace(WIDE, batch=batch, block=drafts + 1, **sight)
    replayed, right = (Blocks(shape, (1, drafts + 1, 2), 270, PLACE) for _ in range(2))
    held, columns = replayed.block, replayed.columns
    results: list[Any] = []
    graph = captured(lambda: results.append(outside(replayed)))
    assert nodes(graph) == 4, "where each token goes, its keys, its values, and the attention"
    for _ in range(20):
        for mine, new in zip(
            (*held, columns, *replayed.pools), (*right.block, right.columns, *right.pools), strict=True
        ):
            mine.copy_(new)
        graph.replay()
        wanted = right.reference()
        assert close(results[-1], wanted["seen"])
        for mine, theirs in zip(replayed.pools, right.pools, strict=True):
            assert torch.equal(mine.view(torch.int16), theirs.view(torch.int16))
        right.next()


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_both_ways_to_append_leave_and_give_the_same_bits(batch: int) -> None:
    one, other = (Blocks(replace(WIDE, batch=batch), (2,), 300, PLACE) for _ in range(2))
    assert torch.equal(outside(one), inside(other))
    for mine, theirs in zip(one.pools, other.pools, strict=True):
        assert torch.equal(mine.view(torch.int16), theirs.view(torch.int16))


@pytest.mark.parametrize("others", [[], ["context-kv-cache"]], ids=["recomputed context", "kept context"])
def test_the_cycle_has_hits_in_its_graphs_and_the_same_tokens(others: list[str]) -> None:
    settings = Settings(Geometry(), context=256, batch=4, device="cuda")
    prompts = random_prompts(settings, 6, 100)
    stock = generate(Cycle(settings), prompts, 60)
    optimized.apply(["external-kv-append", *others])
    try:
        on = generate(Cycle(settings), prompts, 60)
        said = optimized.counts()
    finally:
        optimized.revert()
    assert on.tokens == stock.tokens
    assert [(one["hits"], one["fallbacks"], one["errors"]) for one in said] == [(on.cycles, 0, 0)] * len(said)


@pytest.mark.parametrize(("batch", "context"), [(1, 2048), (8, 2048), (64, 2048), (1, 32768), (8, 32768)])
def test_what_the_three_arms_take(batch: int, context: int, capsys: pytest.CaptureFixture[str]) -> None:
    shape = replace(WIDE, batch=batch, columns=context + 8)
    problem = Blocks(shape, (1,), context - batch, PLACE)
    for pool in problem.pools:
        pool.nan_to_num_(0.0)
    ends = (problem.columns[:, -1:] + 1).expand_as(problem.columns)
    mask = attention.visible(problem.columns, shape.columns, ends)

    def gathered() -> Any:
        for pool, own in zip(problem.pools, problem.block[1:], strict=True):
            pool[problem.slots.unsqueeze(1), problem.columns] = own
        keys, values = (pool[problem.slots] for pool in problem.pools)
        return attention.attend(problem.block[0], keys, values, mask)

    assert close(outside(problem), gathered())
    gather, scatter = microseconds(gathered, lambda: outside(problem))
    append, _ = microseconds(lambda: inside(problem), lambda: outside(problem))
    read = 2 * batch * context * shape.key_heads * shape.head_dim * 2
    with capsys.disabled():
        print(
            f"\nexternal-kv-append, batch {batch}, context {context}: gather {gather:.1f} us, "
            f"append in the kernel {append:.1f}, outside {scatter:.1f}; memory floor {read / 4.3e6:.1f}"
        )
