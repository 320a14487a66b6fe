"""state-commit: what it refuses and marks, in a cycle, compiled; and the buffers that verification fills for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from compiling import compiled_for_a_gpu  # noqa: E402
from small_cycles import WITH_STATES, expected, run, small  # noqa: E402

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, random_prompts  # noqa: E402
from optimized.reference_cycle.state_layer import States  # noqa: E402
from optimized.state_commit import OPTIMIZATION, promotion  # noqa: E402
from optimized.state_commit.reference import SMALL, Commit  # noqa: E402

TWO_LAYERS = replace(WITH_STATES, state_layers=(0, 1))
BROKEN = "a row had accepted nothing, or two rows were in one slot"


pytestmark = pytest.mark.usefixtures("interpreted")


def commit(counts: tuple[int, ...] = (2, 4, 1), dtype: str = "float32") -> Commit:
    return Commit(SMALL, 2, (3, 3, 4), counts, Place("cpu", dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_windows_of_any_width_are_copied_bit_by_bit(dtype: str) -> None:
    case = next(case for case in OPTIMIZATION.cases() if case.name == "all accepted")
    judged = judge(OPTIMIZATION, case, Place("cpu", dtype))
    assert judged.passed, judged


@pytest.mark.parametrize("tile", [256, 2048])
def test_states_of_several_tiles_the_last_of_them_not_full(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(promotion.TILES, "cpu", tile)
    case = next(case for case in OPTIMIZATION.cases() if case.name == "more than a program's numbers")
    judged = judge(OPTIMIZATION, case, Place())
    assert judged.passed, judged


def test_numbers_that_are_no_numbers_keep_their_bits() -> None:
    problem = commit()
    problem.states[0].ssm[:] = torch.tensor(0x7FC12345, dtype=torch.int32).view(torch.float32)
    problem.states[1].ssm[:] = -0.0
    problem.fast()
    kept = [layer.ssm_state[:3].view(torch.int32) for layer in problem.layers]
    assert [set(part.flatten().tolist()) for part in kept] == [{0x7FC12345}, {-(2**31)}]


@pytest.mark.parametrize("fault", ["nothing accepted", "one slot"])
def test_a_broken_rule_is_marked_and_what_accepted_nothing_keeps_its_state(fault: str) -> None:
    problem = commit((2, 0, 1) if fault == "nothing accepted" else (2, 4, 1))
    if fault == "one slot":
        problem.slots[1] = problem.slots[0]
    before = [layer.ssm_state.clone() for layer in problem.layers]
    problem.fast()
    assert problem.promotion.broken.tolist() == [1]
    alone = 1 if fault == "nothing accepted" else int(problem.slots[0]) - 1
    assert [
        torch.equal(layer.ssm_state[alone], kept[alone]) for layer, kept in zip(problem.layers, before, strict=True)
    ]
    assert not torch.equal(problem.layers[0].ssm_state[int(problem.slots[2])], before[0][int(problem.slots[2])])


def test_idle_rows_break_no_rule_and_the_dummy_keeps_its_state() -> None:
    problem = commit((0, 0, 3))
    problem.slots[:2] = problem.batch
    before = [layer.ssm_state[-1].clone() for layer in problem.layers]
    problem.fast()
    assert problem.promotion.broken.tolist() == [0]
    assert all(torch.equal(layer.ssm_state[-1], kept) for layer, kept in zip(problem.layers, before, strict=True))


def test_states_that_lie_elsewhere_in_the_next_cycle_are_found() -> None:
    problem = commit()
    problem.fast()
    addresses = problem.promotion.addresses.clone()
    problem.fast()
    assert torch.equal(problem.promotion.addresses, addresses)
    held = problem.states
    problem.next()
    problem.fast()
    assert not torch.equal(problem.promotion.addresses[:2], addresses[:2])
    assert torch.equal(problem.promotion.addresses[2:], addresses[2:])
    del held


def test_what_cannot_be_promoted_together_is_refused() -> None:
    problem = commit()
    layers, states, slots, counts = problem.layers, problem.states, problem.slots, problem.counts
    first, second = states
    assert promotion.why_not(layers, states, slots, counts) is None
    others: dict[str, tuple[Any, ...]] = {
        "no layers": ([], [], slots, counts),
        "differ in shape": (layers, [first, States(second.convolution, second.ssm[:, 1:])], slots, counts),
        "differ in shape, layout": (
            layers,
            [first, States(second.convolution, second.ssm.transpose(3, 4).contiguous().transpose(3, 4))],
            slots,
            counts,
        ),
        "than it makes them": (layers, [States(s.convolution, s.ssm.double()) for s in states], slots, counts),
        "dense int64": (layers, states, slots.int(), counts),
    }
    for word, given in others.items():
        assert word in (promotion.why_not(*given) or "")
    doubled = [replace(layer, ssm_state=layer.ssm_state.double()) for layer in layers]
    said = promotion.why_not(doubled, [States(s.convolution, s.ssm.double()) for s in states], slots, counts)
    assert "a dtype that the kernel does not copy" in (said or "")


def test_a_broken_rule_is_a_counted_fallback_from_the_next_cycle_on() -> None:
    settings = small(TWO_LAYERS)
    cycle = Cycle(settings)
    cycle.add(random_prompts(settings, 3, 9), 20)
    optimized.apply(["state-commit"])
    cycle.step()
    output, slots = cycle.target.forward(), cycle.batch.slots
    cycle.target.commit_states(output.states, slots, torch.zeros_like(slots))
    cycle.step()
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (2, {BROKEN: 1})


@pytest.mark.parametrize(
    ("drafter", "others"), [("dflash", []), ("dflash", ["verify-k-plus-one"]), ("dspark", []), ("none", [])]
)
def test_tokens_and_drafts_of_a_cycle(drafter: str, others: list[str]) -> None:
    settings, mode = small(TWO_LAYERS, drafter=drafter), "drafter" if drafter == "none" else "forced"
    optimized.apply(others)
    off, log = run(settings, mode)
    optimized.apply(["state-commit"])
    on, other = run(settings, mode)
    said = optimized.counts()[-1]
    assert said == {"id": "state-commit", "hits": on.cycles, "fallbacks": 0, "errors": 0, "reasons": {}}
    assert on.tokens == off.tokens == expected(settings)
    if drafter != "none":
        assert compare_drafts(log, other).agrees(0.0)


def test_a_wrong_row_shows_in_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(TWO_LAYERS)
    promote = promotion.Promotion.promote
    monkeypatch.setattr(
        promotion.Promotion,
        "promote",
        lambda self, states, slots, counts: promote(self, states, slots, (counts + 1).clamp(max=4)),
    )
    optimized.apply(["state-commit"])
    on, _ = run(settings, "forced")
    assert on.tokens != expected(settings)


def test_it_compiles_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(promotion.TILES, "cpu", promotion.TILES["cuda"])
    problem = commit(dtype="bfloat16")
    (code,) = compiled_for_a_gpu(promotion, problem.fast, tmp_path, monkeypatch).values()
    assert "st.global.b16" in code.asm["ptx"]
    assert "st.global.b32" in code.asm["ptx"]
