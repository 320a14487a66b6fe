"""accept on a GPU: the verdict of PyTorch's own chain to the bit, a graph whose inputs are rewritten, nodes, time."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, microseconds, nodes  # noqa: E402

from optimized.accept import OPTIMIZATION  # noqa: E402
from optimized.accept.accepting import Buffers, accept, why_not  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.reference_cycle.acceptance import Verdict, Verifier  # noqa: E402

LAUNCHES = 2
NAMES = ("accepted", "counts", "newest")


def drawn(batch: int, drafts: int, vocab: int, seed: int, dtype: Any = torch.bfloat16) -> tuple[Any, Any]:
    """Logits in bfloat16, whose greatest is rarely alone, and drafts of which the first 0 to K are right.

    One row in eight holds two NaN, one in eight nothing but minus infinity.
    """
    random = torch.Generator("cuda").manual_seed(seed)
    logits = torch.randn(batch, 2 * drafts, vocab, generator=random, device="cuda").to(dtype)
    rows = logits.view(-1, vocab)
    rows[seed % 8 :: 8, vocab // 3] = rows[seed % 8 :: 8, vocab - 1] = float("nan")
    rows[(seed + 3) % 8 :: 8] = -torch.inf
    right = logits[:, :drafts].argmax(dim=-1)
    stand = torch.randint(drafts + 1, (batch, 1), generator=random, device="cuda")
    return logits, torch.where(torch.arange(drafts, device="cuda") < stand, right, (right + 1) % vocab)


def equal(got: Verdict, wanted: Verdict) -> bool:
    return all(torch.equal(getattr(got, name), getattr(wanted, name)) for name in NAMES)


@pytest.mark.parametrize("case", OPTIMIZATION.cases(), ids=lambda case: case.name)
def test_no_bit_differs(case: Any) -> None:
    judged = judge(OPTIMIZATION, case, Place("cuda", "bfloat16"))
    assert (judged.passed, judged.unequal) == (True, 0), judged


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("drafts", [3, 7, 10, 15])
@pytest.mark.parametrize("vocab", [163_840, 151_936, 50_257])
def test_whole_vocabularies(batch: int, drafts: int, vocab: int) -> None:
    buffers, verifier = Buffers.create(batch, drafts + 1, vocab, "cuda"), Verifier()
    for seed in range(3):
        logits, given = drawn(batch, drafts, vocab, seed)
        assert why_not(logits, given) is None
        wanted, before = verifier.accept(logits, given), (logits.clone(), given.clone())
        for name in NAMES:
            getattr(buffers.verdict, name).fill_(-7)
        buffers.best.zero_()
        assert equal(accept(logits, given, buffers), wanted)
        assert torch.equal(logits.view(torch.int16), before[0].view(torch.int16))
        assert torch.equal(given, before[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_other_types_of_words(dtype: Any) -> None:
    logits, given = drawn(4, 7, 151_936, 1, dtype)
    buffers = Buffers.create(4, 8, 151_936, "cuda")
    assert equal(accept(logits, given, buffers), Verifier().accept(logits, given))


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_graph_is_right_for_inputs_that_are_rewritten_in_place(batch: int) -> None:
    vocab, drafts = 163_840, 7
    logits, given = drawn(batch, drafts, vocab, 0)
    buffers = Buffers.create(batch, drafts + 1, vocab, "cuda")
    graph = captured(lambda: accept(logits, given, buffers))
    assert nodes(graph) == LAUNCHES
    for seed in range(1, 21):
        for buffer, new in zip((logits, given), drawn(batch, drafts, vocab, seed), strict=True):
            buffer.copy_(new)
        graph.replay()
        assert equal(buffers.verdict, Verifier().accept(logits, given))


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_what_it_takes(batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    vocab, drafts = 163_840, 7
    logits, given = drawn(batch, drafts, vocab, 0)
    logits, buffers, verifier = (
        logits[:, : drafts + 1].contiguous(),
        Buffers.create(batch, 8, vocab, "cuda"),
        Verifier(),
    )
    sides = (lambda: verifier.accept(logits, given), lambda: accept(logits, given, buffers))
    stock, fast = microseconds(*sides)
    counted = [nodes(captured(side)) for side in sides]
    assert counted[1] == LAUNCHES < counted[0]
    floor = logits.nbytes / 4.3e6
    with capsys.disabled():
        print(
            f"\naccept, batch {batch}: {stock:.2f} us in {counted[0]} nodes to {fast:.2f} in {LAUNCHES} "
            f"(reading the logits at 4.3 TB/s: {floor:.2f})"
        )
