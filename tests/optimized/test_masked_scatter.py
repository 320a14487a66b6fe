"""The store of the verified rows: faults, its guard, and everything of the context together."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from compiling import compiled_for_a_gpu  # noqa: E402
from planting import failing_after, with_a_fault  # noqa: E402
from small_cycles import OUTPUT, SMALL, WITH_STATES, expected, prompts_for, run, small  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.masked_scatter import OPTIMIZATION, kernels  # noqa: E402
from optimized.masked_scatter.storing import Memory, store, why_not  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.dflash import DFlashDrafter  # noqa: E402
from optimized.reference_cycle.graphs import Pass  # noqa: E402

ID, CLOSE = OPTIMIZATION.id, TOLERANCES["float32"]
TOGETHER = ["context-kv-cache", "context-norm-rope", "masked-scatter", "qk-norm-rope"]
Patch = pytest.MonkeyPatch


pytestmark = pytest.mark.usefixtures("interpreted")


def given(device: str = "cpu", dtype: Any = None) -> list[Any]:
    states = torch.randn(2, 3, 24).to(device, dtype or torch.float32)
    positions = torch.arange(6).reshape(2, 3).to(device)
    kept = Memory(states.new_zeros(3, 9, 24), torch.zeros(3, 9, dtype=torch.int64, device=device))
    return [states, positions, torch.tensor([3, 1], device=device), torch.tensor([1, 0], device=device), kept]


FAULTS = {
    "it selects": ("state * stands", "tl.where(stands > 0, state, 0.0)"),
    "it keeps all": ("state * stands", "state"),
    "one row more stands": ("row % VERIFIED < tl.load", "row % VERIFIED <= tl.load"),
    "rows are the batch's": ("tl.load(slots + request)", "request"),
    "counts are another's": ("tl.load(counts + request)", "tl.load(counts)"),
    "wide rows are cut": ("tl.program_id(1) * TILE + tl.arange", "0 * TILE + tl.arange"),
}
SHOWING = ("infinities", "odd shapes", "rows wider than a program", "none accepted", "capacity reached")


def shown() -> bool:
    return not all(judge(OPTIMIZATION, case, Place()).passed for case in OPTIMIZATION.cases() if case.name in SHOWING)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault: str, tmp_path: Path, monkeypatch: Patch) -> None:
    broken = with_a_fault(kernels, *FAULTS[fault], tmp_path)
    assert not shown()
    monkeypatch.setattr(kernels, "multiply_and_store", broken.multiply_and_store)
    assert shown()


@pytest.mark.parametrize(
    ("index", "change", "reason"),
    [
        (0, lambda states: states.double(), "in float64"),
        (0, lambda states: states.half(), "another dtype"),
        (0, lambda states: states.transpose(0, 1).contiguous().transpose(0, 1), "side by side"),
        (2, lambda counts: counts.int(), "not int64"),
    ],
)
def test_what_the_kernel_does_not_do_is_refused(index: int, change: Any, reason: str, monkeypatch: Patch) -> None:
    arguments = given()
    assert why_not(*arguments) is None
    arguments[index] = change(arguments[index])
    assert reason in (why_not(*arguments) or "")
    monkeypatch.delenv(launching.INTERPRET)
    assert "no GPU" in (why_not(*given()) or "")


def test_numbers_that_it_does_not_multiply_are_left_to_stock_and_said() -> None:
    settings = small(dtype="float64")
    _, log = run(settings, "forced")
    optimized.apply([ID])
    on, other = run(settings, "forced")
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"no mask is multiplied in float64": on.cycles})
    assert compare_drafts(log, other).agrees()


def test_a_replay_of_graphs_that_are_older_than_the_switch_is_no_hit(monkeypatch: Patch) -> None:
    cycle = Cycle(small(batch=3))
    cycle.add(prompts_for(cycle.settings), OUTPUT)
    cycle.step()
    drafter, verdict = cycle.drafter, cycle.verifier.sample(torch.zeros(3, 6, 97), cycle.batch.drafts)
    assert isinstance(drafter, DFlashDrafter)
    optimized.apply([ID])
    monkeypatch.setattr(Pass, "__call__", lambda self: None)
    drafter.propose(verdict)
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"its graphs were captured before the switch": 1})


@pytest.mark.parametrize("name", TOGETHER)
def test_a_revert_drops_the_graphs_that_hold_it(name: str, monkeypatch: Patch) -> None:
    optimized.apply([name])
    cycle, forgotten = Cycle(small()), []
    cycle.add(prompts_for(cycle.settings), OUTPUT)
    cycle.step()
    monkeypatch.setattr(DFlashDrafter, "forget_graphs", lambda drafter: forgotten.append(drafter))
    (said,) = optimized.revert()
    assert (said["hits"], forgotten) == (1, [cycle.drafter])


@pytest.mark.parametrize("launches", [0, 3])
def test_a_failure_falls_back_and_is_counted(launches: int, monkeypatch: Patch) -> None:
    settings = small()
    _, log = run(settings)
    optimized.apply([ID])
    monkeypatch.setattr(launching, "launch", failing_after(launches, launching.launch))
    on, other = run(settings)
    (said,) = optimized.revert()
    assert said["reasons"]["RuntimeError: planted"] == said["errors"] == 1
    assert said["reasons"]["it failed before (RuntimeError)"] == said["fallbacks"] == on.cycles - said["hits"]
    assert compare_drafts(log, other).agrees()


@pytest.mark.parametrize(
    ("draft_length", "batch", "dtype", "shape"),
    [
        (3, 1, "float32", {}),
        (7, 3, "float16", {"windows": (None, 5), "causal_windows": True}),
        (10, 2, "float32", {"sinks": True, "windows": (4,)}),
        (15, 1, "float32", {"head_dim": 32, "heads": 2, "kv_heads": 1}),
    ],
)
def test_all_that_is_done_to_the_context_and_the_block_at_once(
    draft_length: int, batch: int, dtype: str, shape: dict[str, Any]
) -> None:
    geometry = replace(WITH_STATES, dflash=replace(SMALL.dflash, **shape))
    settings = small(geometry, draft_length=draft_length, batch=batch, dtype=dtype)
    stock, log = run(settings, "forced")
    optimized.apply(TOGETHER)
    on, other = run(settings, "forced")
    for said in optimized.counts():
        assert (said["hits"], said["fallbacks"], said["errors"]) == (on.cycles, 0, 0)
    assert on.tokens == stock.tokens == expected(settings)
    assert compare_drafts(log, other).largest < 4 * TOLERANCES[dtype]
    assert compare_drafts(log, other).different == 0


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs comes with its Linux wheels")
def test_it_compiles_for_a_gpu(tmp_path: Path, monkeypatch: Patch) -> None:
    arguments = given("meta", torch.bfloat16)
    found = compiled_for_a_gpu(launching, lambda: store(*arguments), tmp_path, monkeypatch)
    code = found["multiply_and_store"].asm["ptx"]
    assert "st.global" in code
    assert "mul" in code
