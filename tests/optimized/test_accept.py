"""accept's kernels, interpreted: the rules of the greatest word, what they refuse, a cycle, and that they compile."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from compiling import compiled_for_a_gpu  # noqa: E402
from small_cycles import run, small  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.accept import OPTIMIZATION, accepting, kernels, reference  # noqa: E402
from optimized.accept.accepting import Buffers, accept, why_not  # noqa: E402
from optimized.accept.reference import best as first_best  # noqa: E402
from optimized.cases import Case, Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.reference_cycle.acceptance import Verifier  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402

CASES = {case.name: case for case in reference.cases()}
every = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


pytestmark = pytest.mark.usefixtures("interpreted")


@every
def test_what_is_replaced_is_what_the_reference_says(case: Case) -> None:
    problem: Any = case.make(case.at(Place()))
    for _ in range(case.steps):
        verdict = Verifier().accept(problem.logits, problem.drafts)
        for name, wanted in problem.reference().items():
            got = getattr(verdict, name)
            assert (got.dtype, got.tolist()) == (wanted.dtype, wanted.tolist()), name
        problem.next()


@every
def test_words_in_bfloat16_are_compared_as_they_are(case: Case) -> None:
    judged = judge(OPTIMIZATION, Case(case.name, case.make, min(case.steps, 2)), Place("cpu", "bfloat16"))
    assert judged.passed, judged


@pytest.mark.parametrize("tile", [1, 16, 64, 4096])
def test_a_vocabulary_in_tiles_of_any_size(tile: int) -> None:
    shape = reference.Shape(1, 2, 3, 33, tile)
    case = Case("tiles", lambda place: reference.Decision(shape, (1,), reference.not_numbers, place), 2)
    assert judge(OPTIMIZATION, case, Place()).passed


def last_best(row: list[float]) -> int:
    return len(row) - 1 - first_best(row[::-1])


def greatest_number(row: list[float]) -> int:
    numbers = [-math.inf if math.isnan(value) else value for value in row]
    return numbers.index(max(numbers))


@pytest.mark.parametrize(
    ("rule", "name"), [(last_best, "equal words"), (greatest_number, "not numbers"), (last_best, "not numbers")]
)
def test_another_rule_for_the_best_word_is_seen(
    rule: Callable[[list[float]], int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(OPTIMIZATION, CASES[name], Place()).passed
    monkeypatch.setattr(reference, "best", rule)
    assert judge(OPTIMIZATION, CASES[name], Place()).unequal > 0


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_every_number_of_drafts_that_can_stand(batch: int) -> None:
    shape = reference.Shape(batch, 2, 3, 20, 16)
    case = Case("numbers", lambda place: reference.Decision(shape, (0, 1, 2, None), None, place))
    problem = case.make(Place())
    found = problem.fast()["counts"]
    assert found.tolist() == [(1, 2, 3, 1)[row % 4] for row in range(batch)]
    assert torch.equal(problem.reference()["counts"], found)


def test_rows_of_a_larger_buffer_are_read_where_they_lie() -> None:
    random = torch.Generator().manual_seed(3)
    wide = torch.randn(4, 9, 40, generator=random)
    logits, drafts = wide[1:3, 2:, :33], torch.full((2, 5), 7)[:, 1:4]
    drafts[:, 0] = logits[:, 0].argmax(dim=-1)
    assert why_not(logits, drafts) is None
    verdict, wanted = accept(logits, drafts, Buffers.create(2, 4, 33, "cpu", 16)), Verifier().accept(logits, drafts)
    for name in ("accepted", "counts", "newest"):
        assert torch.equal(getattr(verdict, name), getattr(wanted, name))


def test_what_is_refused() -> None:
    logits, drafts = torch.zeros(2, 4, 9), torch.zeros(2, 3, dtype=torch.int64)
    assert why_not(logits, drafts) is None
    assert why_not(logits, drafts[:, :0]) == "nothing is drafted"
    for short in ((logits[:, :3], drafts), (logits[:1], drafts), (logits[0], drafts)):
        assert "rows" in (why_not(*short) or "")
    for strange in ((logits.int(), drafts), (logits, drafts.int())):
        assert "type" in (why_not(*strange) or "")
    for strided in ((logits.transpose(1, 2), drafts), (logits, drafts.T.contiguous().T)):
        assert "side by side" in (why_not(*strided) or "")


def test_without_the_interpreter_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launching.INTERPRET)
    logits, drafts = torch.zeros(2, 4, 9), torch.zeros(2, 3, dtype=torch.int64)
    assert "TRITON_INTERPRET" in (why_not(logits, drafts) or "")
    assert OPTIMIZATION.memory(small()) == 0


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle", "none"])
def test_a_cycle_accepts_and_drafts_the_same(drafter: str) -> None:
    settings = small(drafter=drafter)
    mode = "drafter" if drafter == "none" else "forced"
    off, log = run(settings, mode)
    optimized.apply(["accept"])
    on, other = run(settings, mode)
    (said,) = optimized.counts()
    drafting = drafter != "none"
    assert said["hits"] == (on.cycles if drafting else 0)
    assert said["reasons"] == ({} if drafting else {"nothing is drafted": on.cycles})
    assert (on.tokens, on.acceptance) == (off.tokens, off.acceptance)
    assert compare_drafts(log, other).agrees(0.0) == drafting


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs comes with its Linux wheels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_compiles_for_a_gpu_and_reads_words_in_wide_loads(
    dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.empty(2, 14, 163_840, dtype=dtype, device="meta")
    drafts, buffers = torch.empty(2, 7, dtype=torch.int64, device="meta"), Buffers.create(2, 8, 163_840, "meta")
    assert buffers.best.shape == (2, 8, 40)
    asm = compiled_for_a_gpu(accepting, lambda: accept(logits, drafts, buffers), tmp_path, monkeypatch)
    assert set(asm) == {kernels.best_of_tile.__name__, kernels.verdict_of_request.__name__}
    assert "ld.global.v4" in asm["best_of_tile"].asm["ptx"]
    assert "st.global" in asm["verdict_of_request"].asm["ptx"]
