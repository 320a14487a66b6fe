"""external-kv-append: its kernel interpreted, in three arms, alone and on the kept context, and compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from compiling import compiled_for_a_gpu  # noqa: E402
from small_cycles import SMALL, expected, run, small  # noqa: E402

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.external_kv_append import OPTIMIZATION, attention, switch  # noqa: E402
from optimized.external_kv_append.attention import Sight, append_inside, append_outside, why_not  # noqa: E402
from optimized.external_kv_append.reference import Blocks, Shape, cases  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402

CLOSE = TOLERANCES["float32"]
ODD = Shape(2, 5, 3, 1, 6, 40, window=9, causal=True, sinks=True)


pytestmark = pytest.mark.usefixtures("interpreted")


def problem(shape: Shape = ODD, start: int = 29, dtype: str = "float32") -> Blocks:
    return Blocks(shape, (2,), start, Place("cpu", dtype))


@pytest.mark.parametrize("shape", [ODD, Shape(1, 9, 1, 8, 16, 60), replace(Shape(), window=6)], ids=str)
def test_the_kernel_that_appends_answers_and_leaves_the_same_bits(shape: Shape) -> None:
    outside, inside = problem(shape), problem(shape)
    cells = outside.slots, outside.columns
    one = append_outside(outside.block, outside.pools, cells, outside.sight)
    other = append_inside(inside.block, inside.pools, cells, inside.sight)
    assert torch.equal(one, other)
    for mine, theirs in zip(outside.pools, inside.pools, strict=True):
        assert torch.equal(mine.view(torch.int32), theirs.view(torch.int32))


def test_gathering_the_slots_first_gives_the_same_bits() -> None:
    by_slot, gathered = problem(), problem()
    cells = by_slot.slots, by_slot.columns
    one = append_outside(by_slot.block, by_slot.pools, cells, by_slot.sight)
    copied = tuple(pool[gathered.slots] for pool in gathered.pools)
    rows = torch.arange(len(gathered.slots))
    other = append_outside(gathered.block, copied, (rows, gathered.columns), gathered.sight)  # type: ignore[arg-type]
    assert torch.equal(one, other)


def test_bfloat16_stays_within_its_tolerance() -> None:
    case = next(case for case in cases() if case.name == "a window and sinks")
    judged = judge(OPTIMIZATION, case, Place("cpu", "bfloat16"))
    assert judged.passed, judged


@pytest.mark.parametrize("fault", ["slot", "column", "window", "sinks"])
def test_a_wrong_number_is_beyond_the_tolerance(fault: str) -> None:
    mine = problem()
    wanted = problem().reference()["seen"]
    slots, columns, sight = mine.slots.clone(), mine.columns.clone(), mine.sight
    if fault == "slot":
        slots = slots.flip(0)
    elif fault == "column":
        columns -= 1
    elif fault == "window":
        sight = replace(sight, window=sight.window + 1)
    else:
        sight = replace(sight, sinks=None)
    seen = append_outside(mine.block, mine.pools, (slots, columns), sight)
    used = (seen.double() - wanted.double()).abs() / (CLOSE * (1 + wanted.double().abs()))
    assert float(used.nan_to_num(torch.inf).max()) > 100


def test_what_the_kernel_cannot_do_is_refused() -> None:
    mine = problem()
    block, pools, cells = mine.block, mine.pools, (mine.slots, mine.columns)
    queries, keys, values = block
    assert why_not(block, pools, cells) is None
    others: dict[str, tuple[Any, ...]] = {
        "not all in one": ((queries.half(), keys, values), pools, cells),
        "in one of float32": (
            tuple(part.double() for part in block),
            tuple(pool.double() for pool in pools),
            cells,
        ),
        "shared out": ((queries[:, :, :2], keys, values), pools, cells),
        "side by side": ((queries.transpose(2, 3).contiguous().transpose(2, 3), keys, values), pools, cells),
        "lie differently": (block, (pools[0], pools[1].transpose(0, 1).contiguous().transpose(0, 1)), cells),
        "dense int64": (block, pools, (mine.slots.int(), mine.columns)),
    }
    for word, given in others.items():
        assert word in (why_not(*given) or "")


@pytest.mark.parametrize(
    ("changes", "others"),
    [({}, ["context-kv-cache"]), ({"windows": (None, 3), "causal_windows": True, "sinks": True}, [])],
    ids=["kept context", "windows and sinks"],
)
def test_drafts_of_a_cycle(changes: dict[str, Any], others: list[str]) -> None:
    settings = small(replace(SMALL, dflash=replace(SMALL.dflash, **changes)))
    _, log = run(settings, "forced")
    optimized.apply(["external-kv-append", *others])
    on, other = run(settings, "forced")
    said = optimized.counts()
    assert [(one["hits"], one["fallbacks"], one["errors"]) for one in said] == [(on.cycles, 0, 0)] * len(said)
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


def test_where_it_cannot_the_layers_attend_as_before_and_it_says_why() -> None:
    settings = small(dtype="float64")
    optimized.apply(["external-kv-append"])
    on, _ = run(settings, "forced")
    (said,) = optimized.counts()
    reason = "queries, keys and values are not all in one of float32, float16 and bfloat16"
    assert (said["hits"], said["reasons"]) == (0, {reason: on.cycles})


def test_a_cycle_in_which_one_layer_attends_as_before_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small()
    monkeypatch.setattr(switch, "why_not", lambda drafter, index, *_: None if index else "it is a test")
    optimized.apply(["external-kv-append"])
    on, _ = run(settings)
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"it is a test": on.cycles})


def test_a_failure_falls_back_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small()
    _, log = run(settings)
    optimized.apply(["external-kv-append"])
    monkeypatch.setattr(switch.attention, "attend", lambda *_, **__: 1 / 0)
    on, other = run(settings)
    (said,) = optimized.counts()
    failed, reason = "ZeroDivisionError: division by zero", "it failed before (ZeroDivisionError)"
    assert (said["hits"], said["reasons"]) == (0, {failed: 1, reason: on.cycles})
    assert compare_drafts(log, other).agrees(0.0)


@pytest.mark.parametrize(
    ("sight", "append"), [(Sight(), True), (Sight(1024, True), False)], ids=["all, append", "a causal window"]
)
def test_it_compiles_for_a_gpu_to_tensor_core_instructions(
    sight: Sight, append: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, keys = (torch.empty(2, 8, heads, 128, dtype=torch.bfloat16, device="meta") for heads in (32, 8))
    pool = torch.empty(3, 2056, 8, 128, dtype=torch.bfloat16, device="meta")
    cells = (torch.empty(2, dtype=torch.int64), torch.empty(2, 8, dtype=torch.int64))
    sinks = torch.empty(32) if sight.window else None
    monkeypatch.setattr(attention, "_widened", None)
    monkeypatch.setattr(type(queries), "is_cuda", True, raising=False)
    (code,) = compiled_for_a_gpu(
        attention,
        lambda: attention.attend((queries, keys, keys), (pool, pool), cells, replace(sight, sinks=sinks), append),
        tmp_path,
        monkeypatch,
    ).values()
    assert "mma" in code.asm["ptx"]
    assert code.metadata.shared < 227 * 1024
