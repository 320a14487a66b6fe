"""The Markov chain on a GPU: tokens and logits in bfloat16, in a graph whose inputs are rewritten; nodes and time."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

import torch.nn.functional as F  # noqa: E402
from capturing import captured, microseconds, nodes  # noqa: E402

from optimized.cases import Place  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.markov_chain import OPTIMIZATION  # noqa: E402
from optimized.markov_chain.chain import Chosen, Head, draft, empty_keys  # noqa: E402
from optimized.markov_chain.contest import contest  # noqa: E402
from optimized.markov_chain.reference import Chain, Shape  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from optimized.timing import copy_bandwidth  # noqa: E402

WORDS, RANK = 163840, 256
HALVES = ("bfloat16", "float16")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    "case", [one for one in OPTIMIZATION.cases() if "spread" not in one.name], ids=lambda one: one.name
)
def test_whole_numbers_differ_in_no_bit(case: Any, dtype: str) -> None:
    judged = judge(OPTIMIZATION, case, Place("cuda", dtype))
    assert (judged.passed, judged.unequal) == (True, 0), judged


@pytest.mark.parametrize("batch", [1, 8, 17, 32, 65])
@pytest.mark.parametrize("steps", [7, 15])
@pytest.mark.parametrize(("vocab", "rank"), [(WORDS, RANK), (151936, RANK), (5003, 100)])
def test_the_real_sizes_with_whole_numbers(batch: int, steps: int, vocab: int, rank: int) -> None:
    if batch > 17 and steps > 7:
        pytest.skip("the same by fewer steps or requests")
    problem = Chain(Shape(batch, steps, vocab, rank), (0, vocab - 1, 77), True, (), Place("cuda", "bfloat16"))
    got = problem.fast()
    previous = problem.first
    for step in range(steps):
        scores = problem.logits[:, step] + F.linear(problem.embedding[previous], problem.projection)
        previous = scores.argmax(-1)
        assert torch.equal(got["refined"][:, step], scores)
        assert torch.equal(got["tokens"][:, step], previous)


def spread(batch: int, steps: int, dtype: Any) -> tuple[Any, Any, Head]:
    """Logits, first tokens and a head as a drafter has them, of Kimi K3's size."""
    options: dict[str, Any] = {"generator": torch.Generator("cuda").manual_seed(3), "device": "cuda"}
    logits = (4 * torch.randn(batch, steps, WORDS, **options)).to(dtype)
    embedding = torch.randn(WORDS, RANK, **options).to(dtype)
    projection = (torch.randn(WORDS, RANK, **options) * RANK**-0.5).to(dtype)
    return logits, torch.randint(WORDS, (batch,), **options), Head(embedding, projection)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_on_the_same_prefix_it_is_no_worse_than_stock_against_float64(batch: int, dtype: str) -> None:
    logits, first, head = spread(batch, 7, getattr(torch, dtype))
    tokens = torch.empty(batch, 7, dtype=torch.int64, device="cuda")
    refined = torch.empty_like(logits)
    draft(logits, first, head, empty_keys(7, batch, "cuda"), Chosen(tokens, refined))
    assert torch.equal(tokens, refined.argmax(-1)), "the best of what it says that the scores are"
    same = 0
    for step, previous in enumerate([first, *tokens.T[:-1]]):
        stock = logits[:, step] + F.linear(head.embedding[previous], head.projection)
        exact = logits[:, step].double() + head.embedding[previous].double() @ head.projection.double().T
        errors = [float((side.double() - exact).abs().max()) for side in (refined[:, step], stock)]
        assert errors[0] <= max(2 * errors[1], TOLERANCES[dtype])
        same += int((tokens[:, step] == stock.argmax(-1)).sum())
    # A sum that ends in the middle between two numbers of the type may be rounded the other way.
    assert same >= 7 * batch - max(1, batch // 8)


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("steps", [7, 15])
def test_a_graph_is_right_for_inputs_that_are_rewritten_in_place(batch: int, steps: int) -> None:
    shape = Shape(batch, steps, 20011, 64)
    right, replayed = (Chain(shape, (3, 20010), True, (), Place("cuda", "bfloat16")) for _ in range(2))
    head, held = Head(replayed.embedding, replayed.projection), (replayed.logits, replayed.first)
    graph = captured(lambda: draft(*held, head, replayed.keys, replayed.out))
    assert nodes(graph) == steps + 2
    for _ in range(20):
        held[0].copy_(right.logits)
        held[1].copy_(right.first)
        replayed.poison()
        graph.replay()
        wanted = right.reference()
        assert torch.equal(replayed.out.tokens, wanted["tokens"])
        assert torch.equal(replayed.out.refined, wanted["refined"])
        right.next()


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_what_it_takes(batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(
        GEOMETRIES["kimi-k3-drafter"], draft_length=7, batch=batch, context=256, device="cuda", dtype="bfloat16"
    )
    both = contest(settings)
    stock, fast = microseconds(both.stock, both.fast)
    counted = [nodes(captured(side)) for side in (both.stock, both.fast)]
    assert counted[1] == settings.speculative + 2
    floor = both.moved() / copy_bandwidth("cuda", 6) * 1e6
    with capsys.disabled():
        print(
            f"\nmarkov-chain, batch {batch}, K=7: {stock:.1f} us in {counted[0]} nodes to {fast:.1f} in {counted[1]}; "
            f"what must be moved takes {floor:.1f}"
        )
