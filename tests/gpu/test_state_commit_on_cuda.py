"""state-commit on a GPU: every bit, in a graph whose states are rewritten in place, its one node and its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, microseconds, nodes  # noqa: E402

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES, Geometry, StateShape  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from optimized.state_commit import OPTIMIZATION  # noqa: E402
from optimized.state_commit.contest import contest  # noqa: E402
from optimized.state_commit.reference import Commit  # noqa: E402

SHAPE = StateShape(heads=8, head_dim=64, size=128, width=4)
PLACE = Place("cuda", "bfloat16")


@pytest.mark.parametrize("case", OPTIMIZATION.cases(), ids=lambda case: case.name)
def test_no_bit_differs(case: Any) -> None:
    judged = judge(OPTIMIZATION, case, PLACE)
    assert (judged.passed, judged.unequal) == (True, 0), judged


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("drafts", [3, 7, 10, 15])
def test_a_graph_is_right_for_states_that_are_rewritten_in_place(batch: int, drafts: int) -> None:
    sizes, pattern = (batch, max(batch - 1, 1), drafts + 1), (1, drafts + 1, 2)
    problem, right = (Commit(SHAPE, 3, sizes, pattern, PLACE) for _ in range(2))
    graph = captured(lambda: problem.promotion.promote(problem.states, problem.slots, problem.counts))
    assert nodes(graph) == 1
    held, counts = problem.states, problem.counts
    for _ in range(20):
        for mine, new in zip(held, right.states, strict=True):
            mine.convolution._base.copy_(new.convolution._base)  # its windows overlap
            mine.ssm.copy_(new.ssm)
        counts.copy_(right.counts)
        problem.poison()
        graph.replay()
        right.reference()
        for mine, wanted in zip(problem.layers, right.layers, strict=True):
            assert torch.equal(mine.convolution_state[:batch], wanted.convolution_state[:batch])
            assert torch.equal(mine.ssm_state[:batch], wanted.ssm_state[:batch])
        right.next()
    assert problem.promotion.broken.tolist() == [0]


@pytest.mark.parametrize("fault", ["nothing accepted", "one slot"])
def test_the_host_sees_a_broken_rule_without_a_copy(fault: str) -> None:
    problem = Commit(SHAPE, 2, (3, 3, 4), (2, 4, 1), PLACE)
    if fault == "one slot":
        problem.slots[1] = problem.slots[0]
    else:
        problem.counts[1] = 0
    problem.promotion.promote(problem.states, problem.slots, problem.counts)
    torch.cuda.synchronize()
    assert problem.promotion.broken.tolist() == [1]


def test_the_cycle_has_hits_and_the_same_tokens() -> None:
    geometry = replace(Geometry(), state_layers=(1, 2))
    settings = Settings(geometry, context=128, batch=4, device="cuda", dtype="bfloat16")
    prompts = random_prompts(settings, 6, 40)
    stock = generate(Cycle(settings), prompts, 40)
    optimized.apply(["state-commit"])
    try:
        cycle = Cycle(settings)
        on = generate(cycle, prompts, 40)
        (said,) = optimized.counts()
        blocks = optimized.allocated("state-commit")
    finally:
        optimized.revert()
    assert on.tokens == stock.tokens
    assert (said["hits"], said["fallbacks"], said["errors"]) == (on.cycles, 0, 0), said
    assert blocks == OPTIMIZATION.memory(settings) == 4 * 8 * 2


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_what_it_takes(batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    geometry = GEOMETRIES["nemotron-h"].scaled(layers=12)
    held = contest(Settings(geometry, batch=batch, draft_length=3, context=256, device="cuda", dtype="bfloat16"))
    stock, fast = microseconds(held.stock, held.fast)
    counted = [nodes(captured(side)) for side in (held.stock, held.fast)]
    assert counted[1] == 1
    with capsys.disabled():
        layers = len(geometry.state_layers)
        print(
            f"\nstate-commit, {layers} layers, batch {batch}: {stock:.2f} us in {counted[0]} nodes to {fast:.2f} in 1; "
            f"{held.moved() / 1e6:.1f} MB at 4.3 TB/s are {held.moved() / 4.3e6:.2f} us"
        )
