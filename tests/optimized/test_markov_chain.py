"""The Markov chain's kernels, interpreted: ties and odd scores as PyTorch's argmax, faults, the cycle; compiled too."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402
from compiling import compiled_for_a_gpu  # noqa: E402
from planting import failing_after  # noqa: E402
from small_cycles import run, small  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.markov_chain import OPTIMIZATION, chain, kernels  # noqa: E402
from optimized.markov_chain.chain import MOST_RANK, Chosen, Head, draft, empty_keys, why_not  # noqa: E402
from optimized.markov_chain.reference import Chain, Shape  # noqa: E402
from optimized.markov_chain.switch import MarkovChain  # noqa: E402
from optimized.passes import OLDER  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402

ID = "markov-chain"
INF, NAN = math.inf, math.nan
VOCAB = 300
"""Three tiles, of which the last is not full."""


pytestmark = pytest.mark.usefixtures("interpreted")


# Which token is the best


def chosen(scores: Any) -> int:
    """The token that one step of one request chooses among these scores, without a bias."""
    head = Head(torch.zeros(1, 1, dtype=scores.dtype), torch.zeros(len(scores), 1, dtype=scores.dtype))
    tokens = torch.full((1, 1), -1)
    draft(scores.reshape(1, 1, -1), torch.zeros(1, dtype=torch.int64), head, empty_keys(1, 1, "cpu"), Chosen(tokens))
    return int(tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "odd",
    [
        {5: 1.0, 200: 1.0},
        {131: 2.0, 130: 2.0, 299: 1.9},
        {299: 0.5},
        {7: NAN, 3: INF, 250: NAN},
        {270: -NAN, 1: INF},
        {140: INF, 20: INF},
        {150: -0.0, 151: 0.0, 20: -1.0},
        {150: 0.0, 20: -0.0},
        {40: 1e-7, 260: 2e-7},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("others", [-3.0, -INF])
def test_the_best_is_argmaxs_for_ties_zeros_infinities_and_no_numbers(
    odd: dict[int, float], others: float, dtype: Any
) -> None:
    scores = torch.full((VOCAB,), others, dtype=dtype)
    for token, score in odd.items():
        scores[token] = score
    assert chosen(scores) == int(scores.argmax())


def test_programs_that_take_several_tiles_each_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "PROGRAMS", 2)
    monkeypatch.setattr(chain, "MOST_TOKENS", 32)
    for case in OPTIMIZATION.cases():
        if case.name.startswith(("odd shapes", "capacity")):
            assert judge(OPTIMIZATION, case, Place()).passed


def test_whole_numbers_differ_in_no_bit() -> None:
    whole = [case for case in OPTIMIZATION.cases() if "spread" not in case.name and case.steps == 1]
    judged = [judge(OPTIMIZATION, case, Place()) for case in whole]
    assert len(judged) > 8
    assert all(one.passed and one.unequal == 0 for one in judged)


def test_it_is_no_worse_than_stock_against_float64() -> None:
    problem = Chain(Shape(4, 5, 200, 64), (3, 7, 150, 9), False, (), Place())
    right, bias = problem.reference(), []
    previous = [problem.first, *right["tokens"].T[:-1]]
    for step, tokens in enumerate(previous):
        stock = problem.logits[:, step] + F.linear(problem.embedding[tokens], problem.projection)
        bias.append(stock)
    got, stock = problem.fast(), torch.stack(bias, 1)
    exact = problem.logits.double() + torch.stack(
        [problem.embedding[tokens].double() @ problem.projection.double().T for tokens in previous], 1
    )
    errors = [float((side.double() - exact).abs().max()) for side in (got["refined"], stock)]
    assert torch.equal(got["tokens"], right["tokens"])
    assert 0 < errors[0] <= max(2 * errors[1], TOLERANCES["float32"])


# Planted faults


FAULTS = {
    "the highest of equals": {"0x7FFFFFFF - token": "token", "0x7FFFFFFF - (": "("},
    "the first token at every step": {"0x7FFFFFFF - (chosen & 0x7FFFFFFF)": "chosen * 0 + tl.load(first)"},
    "the token of the request before": {
        "(step - 1) * keys_step + row": "(step - 1) * keys_step + tl.maximum(row - 1, 0)"
    },
    "the last tile is nobody's": {"(vocab + TILE - 1) // TILE": "vocab // TILE"},
    "a tile is left out": {"range(tl.program_id(0),": "range(tl.program_id(0) + 1,"},
    "tokens that there are not": {"key = tl.where(there[:, None], key,": "key = tl.where(key == key, key,"},
    "negative scores turned round": {"tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)": "bits"},
    "the logits of the first step": {"base * logits_row + step * logits_step": "base * logits_row"},
    "no bias": {"value = scores + bias": "value = scores + 0.0 * bias"},
    "a program's last tile wins": {"best = tl.maximum(best, key)": "best = key"},
    "one rank too few": {"real = rank < RANK": "real = rank < RANK - 1"},
    "tokens counted backwards": {"tl.store(at, 0x7FFFFFFF - (key & 0x7FFFFFFF)": "tl.store(at, key & 0x7FFFFFFF"},
}


def faulty(fault: dict[str, str], folder: Path) -> ModuleType:
    """The kernels with some of their text changed."""
    source = Path(kernels.__file__).read_text()
    for text, planted in fault.items():
        assert text in source
        source = source.replace(text, planted)
    path = folder / "faulty_chain.py"
    path.write_text(source)
    spec = spec_from_file_location("faulty_chain", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the problems that follow differ from the reference's, or cannot be run; each program has two tiles."""
    monkeypatch.setattr(chain, "PROGRAMS", 2)
    monkeypatch.setattr(chain, "MOST_TOKENS", 32)
    problems = [Chain(shape, (1, 94), True, (), Place()) for shape in (Shape(3, 3, 105, 5), Shape(2, 2, 105, 7, 40))]
    problems[1].logits.sub_(30)
    for problem in problems:
        wanted, got = problem.reference(), problem.fast()
        if not all(torch.equal(wanted[name], got[name]) for name in wanted):
            return True
    return False


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = faulty(FAULTS[fault], tmp_path)
    monkeypatch.setattr(kernels, "score_step", broken.score_step)
    monkeypatch.setattr(kernels, "read_tokens", broken.read_tokens)
    assert shown(monkeypatch)


def test_nothing_shows_without_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shown(monkeypatch)


# What is not taken


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"logits": torch.zeros(1, 2, 5, dtype=torch.float64)}, "floating type of at most 32 bits"),
        ({"embedding": torch.zeros(5, 4, dtype=torch.float16)}, "not of one floating type"),
        ({"embedding": torch.zeros(5, 3)}, "not one rank"),
        (
            {"embedding": torch.zeros(5, MOST_RANK + 1), "projection": torch.zeros(5, MOST_RANK + 1)},
            "rank is above 512",
        ),
        ({"projection": torch.zeros(4, 5).T}, "side by side"),
        ({"projection": torch.zeros(4, 4)}, "fewer tokens"),
        ({"embedding": torch.zeros(4, 4)}, "fewer tokens"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(changes: dict[str, Any], why: str) -> None:
    plain = {"logits": torch.zeros(1, 2, 5), "embedding": torch.zeros(5, 4), "projection": torch.zeros(5, 4)}
    given = {**plain, **changes}
    assert why in (why_not(given["logits"], Head(given["embedding"], given["projection"])) or "")
    assert why_not(plain["logits"], Head(plain["embedding"], plain["projection"])) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU for the kernels")
def test_all_of_a_vllm_leaves_it_out_where_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in OPTIMIZATION.versions():
        assert ID in optimized.select("all", version)
    monkeypatch.delenv(launching.INTERPRET)
    assert ID not in optimized.select("all", "0.32.0")
    assert optimized.left_out("all", "0.32.0")[ID] == launching.why_no_kernels("cpu")


# In the cycle


def test_the_drafts_are_the_same_and_every_cycle_is_a_hit() -> None:
    settings = small(drafter="dspark", batch=1, draft_length=7)
    off, log = run(settings, "forced")
    optimized.apply([ID])
    on, other = run(settings, "forced")
    (said,) = optimized.counts()
    assert (said["hits"], said["fallbacks"], said["errors"]) == (on.cycles, 0, 0)
    assert optimized.allocated(ID) == OPTIMIZATION.memory(settings) == 8 * settings.batch * settings.speculative
    assert on.tokens == off.tokens
    assert compare_drafts(log, other).agrees(TOLERANCES["float32"])


def test_another_head_drafts_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(drafter="dspark")
    _, log = run(settings, "forced")
    optimized.apply([ID])
    right = draft
    monkeypatch.setattr(
        chain,
        "draft",
        lambda x, first, head, *rest: right(x, first, replace(head, embedding=head.embedding.flip(0)), *rest),
    )
    assert compare_drafts(log, run(settings, "forced")[1]).different > 0


@pytest.mark.parametrize(
    ("dtype", "interpret", "why"),
    [("float64", "1", "the logits and the Markov head are not"), ("float32", "0", "there is no GPU to run its kernel")],
)
def test_a_loop_that_is_left_says_why(dtype: str, interpret: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(drafter="dspark", dtype=dtype)
    _, log = run(settings, "forced")
    optimized.apply([ID])
    monkeypatch.setenv(launching.INTERPRET, interpret)
    on, other = run(settings, "forced")
    (said,) = optimized.counts()
    ((reason, count),) = said["reasons"].items()
    assert reason.startswith(why)
    assert (said["hits"], said["errors"], count) == (0, 0, on.cycles)
    assert compare_drafts(log, other).agrees(0.0)


@pytest.mark.parametrize("launches", [0, 1, 9])
def test_a_failure_leaves_the_drafts_as_they_are_and_is_counted(launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(drafter="dspark")
    _, log = run(settings, "forced")
    optimized.apply([ID])
    monkeypatch.setattr(launching, "launch", failing_after(launches, launching.launch))
    on, other = run(settings, "forced")
    (said,) = optimized.counts()
    good = launches // (settings.speculative + 1)
    again = "it failed before (RuntimeError)"
    assert said["reasons"] == {"RuntimeError: planted": 1, again: on.cycles - good}
    assert (said["hits"], said["errors"]) == (good, 1)
    assert compare_drafts(log, other).agrees(TOLERANCES["float32"])


def test_a_cycle_whose_graphs_are_older_than_the_switch_is_no_hit() -> None:
    drafter, switch = Cycle(small(drafter="dspark")).drafter, MarkovChain()
    replayed = switch.stand_ins()["DSparkDrafter.forward"](lambda drafter: "a graph's draft")
    assert replayed(drafter) == "a graph's draft"
    assert (switch.counts.hits, dict(switch.counts.fallbacks)) == (0, {OLDER: 1})


# Compiled


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs comes with its Linux wheels")
@pytest.mark.parametrize("batch", [1, 32])
def test_it_compiles_for_a_gpu_in_two_programs_a_multiprocessor(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, rank, steps = 163840, 256, 7

    def call() -> None:
        logits, table = (
            torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((batch, steps, words), (words, rank))
        )
        tokens, first = (torch.empty(*size, dtype=torch.int64, device="meta") for size in ((batch, steps), (batch,)))
        draft(logits, first, Head(table, table), empty_keys(steps, batch, "meta"), Chosen(tokens, logits))

    made = compiled_for_a_gpu(launching, call, tmp_path, monkeypatch)
    step = made["score_step"]
    assert "mma" in step.asm["ptx"]
    assert "cp.async" in step.asm["ptx"]
    assert "max.s64" in step.asm["ptx"]
    assert 2 * step.metadata.shared < 227 * 1024
    assert "st.global" in made["read_tokens"].asm["ptx"]
