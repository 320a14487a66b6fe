"""The kernels of query-build, interpreted, bit by bit; in a cycle, on two ranks, and compiled for a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from compiling import compiled_for_a_gpu  # noqa: E402
from small_cycles import OUTPUT, prompts_for, run, small, source_for  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.cases import Case, Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.query_build import OPTIMIZATION, kernels, lookup, reference  # noqa: E402
from optimized.query_build.lookup import Contexts, Kernels  # noqa: E402
from optimized.query_build.reference import MASK, Block  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate  # noqa: E402

FORMS = ("one launch", "around a lookup")


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


class OwnLookup:
    """A table that only its own lookup can read, as one that is shared out or quantized."""

    def __init__(self, rows: Any) -> None:
        self._rows, self.device, self.dtype = rows, rows.device, rows.dtype

    def look_up(self, ids: Any) -> Any:
        return self._rows[ids.clamp(0, len(self._rows) - 1)]


def in_kernels(case: Case, form: str) -> Case:
    """The same case, built by the kernels."""

    def make(place: Place) -> Block:
        problem: Any = case.make(place)
        table = problem.embedding if form == FORMS[0] else OwnLookup(problem.embedding)
        made = Kernels.create(table, problem.shape.batch, MASK)

        class Form:
            def build(self, embedding: Any, *rest: Any) -> None:
                made.build(table, *rest)

        problem.builder = Form()
        return problem

    return Case(case.name, make, case.steps, case.dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", reference.cases(), ids=lambda case: case.name)
def test_no_bit_differs(case: Case, form: str) -> None:
    judged = judge(OPTIMIZATION, in_kernels(case, form), Place())
    assert judged.passed, judged
    assert judged.unequal == 0
    assert judged.tensors == 5 * case.steps


@pytest.mark.parametrize("form", FORMS)
def test_copies_in_bfloat16(form: str) -> None:
    case = next(case for case in reference.cases() if case.name == "odd shapes")
    assert judge(OPTIMIZATION, in_kernels(case, form), Place("cpu", "bfloat16")).passed


def test_a_row_wider_than_one_step_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_COLUMNS", 16)
    case = next(case for case in reference.cases() if case.name == "odd shapes")
    for form in FORMS:
        assert judge(OPTIMIZATION, in_kernels(case, form), Place()).passed


@pytest.mark.parametrize("fault", ["limit", "mask", "slots"])
def test_a_wrong_number_is_seen(fault: str) -> None:
    name = "idle rows" if fault == "slots" else "capacity reached"
    case = next(case for case in reference.cases() if case.name == name)
    problem: Any = in_kernels(case, FORMS[0]).make(Place())
    right = problem.reference()
    contexts = Contexts(problem.contexts, problem.slots, problem.shape.limit)
    wrong = {
        "limit": Contexts(contexts.lengths, contexts.slots, contexts.limit - 1),
        "slots": Contexts(contexts.lengths, contexts.slots.flip(0), contexts.limit),
    }.get(fault, contexts)
    made = Kernels(MASK - 1 if fault == "mask" else MASK, None)
    made.build(problem.embedding, (problem.accepted, problem.counts), wrong, problem.out)
    differing = [f.name for f in fields(problem.out) if (getattr(problem.out, f.name) != right[f.name]).any()]
    expected = {"limit": ["positions"], "mask": ["noise"], "slots": ["positions", "context_positions"]}
    assert differing == expected[fault]


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle"])
def test_drafts_of_a_cycle_are_equal_bit_by_bit(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(drafter=drafter)
    off, log = run(settings, "forced")
    assert OPTIMIZATION.memory(settings) > 0
    monkeypatch.setenv(launching.INTERPRET, "1")
    assert OPTIMIZATION.memory(settings) == 0
    optimized.apply(["query-build"])
    on, other = run(settings, "forced")
    (said,) = optimized.counts()
    assert (said["hits"], said["fallbacks"], said["errors"]) == (on.cycles, 0, 0)
    assert optimized.allocated("query-build") == 0
    assert on.tokens == off.tokens
    assert compare_drafts(log, other).agrees(0.0)


def test_an_embedding_that_the_kernel_would_read_wrongly_is_left_to_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launching.INTERPRET, "1")
    settings, logs = small(), []
    for ids in ([], ["query-build"]):
        optimized.apply(ids)
        logs.append(DraftLog())
        cycle = Cycle(settings, source_for("forced", settings), logs[-1])
        cycle.target.embedding = cycle.target.embedding.T.contiguous().T  # type: ignore[union-attr]
        on = generate(cycle, prompts_for(settings), OUTPUT)
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"the embedding's rows do not lie side by side": on.cycles})
    assert compare_drafts(*logs).agrees(0.0)


def test_where_kernels_do_not_run_pytorch_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launching.INTERPRET, raising=False)
    assert launching.why_no_kernels("cpu") == "there is no GPU to run its kernel, and TRITON_INTERPRET is not 1"
    assert launching.why_no_kernels("cuda") is None
    monkeypatch.setenv(launching.INTERPRET, "1")
    assert launching.why_no_kernels("cpu") is None
    monkeypatch.setattr(launching, "find_spec", lambda name: None)
    assert {launching.why_no_kernels(device) for device in ("cpu", "cuda")} == {"triton is not installed"}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks printed."""
    script, store = Path(__file__).with_name("on_one_of_two_ranks.py"), tmp_path_factory.mktemp("ranks") / "store"
    environment = {"PATH": "", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([sys.executable, script, str(rank), store], env=environment, **pipes) for rank in range(2)
    ]
    said = [rank.communicate(timeout=120) for rank in started]
    assert [rank.returncode for rank in started] == [0, 0], said
    return [json.loads(out) for out, _ in said]


@pytest.mark.parametrize("drafter", ["dflash", "dspark"])
def test_two_ranks_that_share_the_vocabulary_sum_one_row_a_request_and_the_masks(
    drafter: str, ranks: list[dict[str, Any]]
) -> None:
    one, other = (rank[drafter] for rank in ranks)
    assert one == other
    stock, fast = one["stock"], one["fast"]
    assert (fast["tokens"], fast["drafts"]) == (stock["tokens"], stock["drafts"])
    assert stock["drafts"]
    (counts,) = fast["counts"]
    assert counts["hits"] > 0
    assert (counts["fallbacks"], counts["errors"]) == (0, 0)
    settings = small(drafter=drafter)
    block, one_each = settings.batch * (settings.speculative + (drafter == "dflash")), settings.batch + 1
    assert (block in stock["rows"], one_each in stock["rows"]) == (True, False)
    assert (block in fast["rows"], one_each in fast["rows"]) == (False, True)
    whole, _ = run(settings, "forced")
    assert stock["tokens"] == [tokens[: len(got)] for tokens, got in zip(whole.tokens, stock["tokens"], strict=True)]


@pytest.mark.parametrize("form", FORMS)
def test_it_compiles_for_a_gpu(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in reference.cases() if case.name == "odd shapes")
    problem: Any = in_kernels(case, form).make(Place("cpu", "bfloat16"))
    asm = compiled_for_a_gpu(lookup, problem.fast, tmp_path, monkeypatch)
    assert set(asm) == ({"build_block"} if form == FORMS[0] else {"build_block", "spread_rows"})
    assert all("st.global" in code.asm["ptx"] for code in asm.values())
    assert kernels.build_block.__name__ in asm
