"""The launch behind the context's projection: faults, its guard, both roundings, and whoever projects."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import cycle as repeated
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from compiling import compiled_for_a_gpu  # noqa: E402
from exact_heads import in_float64  # noqa: E402
from planting import failing_after, with_a_fault  # noqa: E402
from small_cycles import OUTPUT, SMALL, expected, prompts_for, run, small  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.context_kv_cache import cache  # noqa: E402
from optimized.context_norm_rope import OPTIMIZATION, kernels, switch  # noqa: E402
from optimized.context_norm_rope.placing import place, why_not, why_not_together  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.reference_cycle import attention  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate  # noqa: E402
from optimized.reference_cycle.dflash import DFlashDrafter  # noqa: E402
from optimized.reference_cycle.geometry import Rope  # noqa: E402
from optimized.reference_cycle.graphs import Pass  # noqa: E402
from optimized.reference_cycle.rope import rope_table  # noqa: E402

ID, CACHE, CLOSE = OPTIMIZATION.id, "context-kv-cache", TOLERANCES["float32"]
Patch = pytest.MonkeyPatch


pytestmark = pytest.mark.usefixtures("interpreted")


def given(layers: int = 2, width: int = 16, device: str = "cpu", dtype: Any = None) -> tuple[Any, ...]:
    """Arguments for three requests' four rows, two of whose slots are swapped."""
    random, options = torch.Generator().manual_seed(5), {"dtype": dtype or torch.float32, "device": device}
    raw = torch.randn(3, 4, layers, 2, 2, width, generator=random).to(**options)
    norms = (1 + torch.randn(layers, width, generator=random) / 10).to(**options)
    positions = torch.arange(12).reshape(3, 4).to(device)
    table = rope_table(Rope(theta=1e4), width, 40, device)
    keys, values = (torch.zeros(layers, 4, 20, 2, width, **options) for _ in range(2))
    slots = torch.tensor([[1], [0], [2]], device=device).expand(3, 4)
    return raw, positions, norms, table, (keys, values), 1e-6, (slots, positions)


# The kernel


FAULTS = {
    "all layers have the norm of the first": ("norms + layer * HEAD_DIM", "norms"),
    "all layers go to the first": ("layer.to(tl.int64) * layer_stride", "0"),
    "values are rotated keys": ("tl.store(value, tl.load(raw_value))", "tl.store(value, turned_low)"),
    "values of another head": ("x + HEADS * HEAD_DIM", "x + HEAD_DIM"),
    "lanes are not halved in order": ("[ROWS, WARPS, 2, 16]), 2)", "[ROWS, WARPS, 16, 2]), 3)"),
    "a request's rows stay in one column": ("tl.load(cell_columns + token)", "tl.load(cell_columns + 0 * token)"),
    "rows are the batch's, not the slots'": (
        "at_row = tl.load(cell_rows + at_row * whose_row + at_column * whose_step)",
        "at_row = at_row",
    ),
    "positions of the wrong token": ("tl.load(positions + token)", "tl.load(positions + token % columns)"),
    "the norm is rounded once, however asked": ("ROUNDING == 2", "ROUNDING == 3"),
    "the norm is not rounded at all": (
        "first = first.to(raw.dtype.element_ty).to(tl.float32)\n",
        "first = first + 0.0\n",
    ),
    "no epsilon": ("(1.0 / HEAD_DIM) + epsilon", "(1.0 / HEAD_DIM)"),
}
SHOWING = ("heads of 128", "odd shapes", "none accepted", "another epsilon", "half precision", "two roundings")


def shown() -> bool:
    chosen = [case for case in OPTIMIZATION.cases() if case.name in SHOWING]
    return not all(judge(OPTIMIZATION, case, Place("cpu", "float16")).passed for case in chosen)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault: str, tmp_path: Path, monkeypatch: Patch) -> None:
    broken = with_a_fault(kernels, *FAULTS[fault], tmp_path)
    monkeypatch.setattr(kernels, "norm_rotate_and_place", broken.norm_rotate_and_place)
    assert shown()


def test_nothing_shows_without_a_fault() -> None:
    assert not shown()


def test_it_writes_nowhere_else() -> None:
    arguments = given()
    before = [buffer.fill_(7.0).clone() for buffer in arguments[4]]
    place(*arguments)
    slots, columns = arguments[6]
    for buffer, was in zip(arguments[4], before, strict=True):
        assert (buffer[:, slots, columns] != 7.0).all()
        buffer[:, slots, columns] = 7.0
        assert torch.equal(buffer, was)


def test_tokens_that_come_in_one_row_are_placed_alike() -> None:
    wide, flat = given(), given()
    place(*wide)
    raw, positions, norms, table, into, epsilon, cells = flat
    place(raw.flatten(0, 1), positions.flatten(), norms, table, into, epsilon, tuple(part.flatten() for part in cells))
    assert all(torch.equal(one, other) for one, other in zip(wide[4], flat[4], strict=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_two_roundings_differ_from_one_and_both_are_right(dtype: str) -> None:
    arguments = given(width=128, dtype=getattr(torch, dtype))
    raw, positions, norms, table, (keys, _), _, (slots, _) = arguments
    exact = [in_float64(raw[:, :, layer, 0], norm, positions, table) for layer, norm in enumerate(norms)]
    attention.place_context(*arguments)
    stock, made = keys[:, slots, positions].clone(), []
    for rounding in (1, 2):
        place(*arguments, rounding)
        made.append(keys[:, slots, positions].clone())
    errors = [float((part.double() - torch.stack(exact)).abs().max()) for part in (stock, *made)]
    assert 0 < max(errors[1:]) <= 2 * errors[0] < 4 * TOLERANCES[dtype]
    differ = (made[0] != made[1]).double().mean() / (made[0] != 0).double().mean()
    assert 0.1 < differ < 0.5


# The guard


@pytest.mark.parametrize(
    ("index", "change", "reason"),
    [
        (0, lambda raw: raw.double(), "another dtype"),
        (0, lambda raw: raw.transpose(0, 1).contiguous().transpose(0, 1), "not dense"),
        (1, lambda positions: positions.unsqueeze(0), "do not come in rows"),
        (1, lambda positions: positions.int(), "no position or no cell each"),
        (2, lambda norms: norms.half(), "another dtype"),
        (3, lambda table: table[:, :8].contiguous(), "only a part of each head"),
        (3, lambda table: table.half(), "not dense float32"),
        (4, lambda into: (into[0], into[1].transpose(1, 2).contiguous().transpose(1, 2)), "laid out alike"),
        (4, lambda into: tuple(part.transpose(3, 4).contiguous().transpose(3, 4) for part in into), "laid out alike"),
        (6, lambda cells: (cells[0][:, :1], cells[1]), "no position or no cell each"),
    ],
)
def test_what_the_kernel_does_not_do_is_refused(index: int, change: Any, reason: str) -> None:
    arguments = list(given())
    assert why_not(*arguments) is None
    arguments[index] = change(arguments[index])
    assert reason in (why_not(*arguments) or "")


def test_heads_that_no_case_covers_and_cpus_that_do_not_interpret_are_refused(monkeypatch: Patch) -> None:
    assert "heads of 24" in (why_not(*given(width=24)) or "")
    assert "in float64" in (why_not(*given(dtype=torch.float64)) or "")
    assert "in float32" in (why_not(*given(device="meta")) or "")
    monkeypatch.delenv(launching.INTERPRET)
    assert "no GPU" in (why_not(*given()) or "")


EPSILONS = "the drafter's layers norm with different epsilons: 1e-06, 1e-05"


@pytest.mark.parametrize("ids", [[ID], [CACHE, ID]], ids="+".join)
def test_layers_with_different_epsilons_are_refused_by_their_values(ids: list[str]) -> None:
    settings, logs = small(), []
    for chosen in ([], ids):
        optimized.apply(chosen)
        cycle = Cycle(settings, None, DraftLog())
        assert isinstance(cycle.drafter, DFlashDrafter)
        layers = cycle.drafter.layers
        assert why_not_together(layers) is cache.why_not(layers, 40) is None
        layers[1] = replace(layers[1], norms=replace(layers[1].norms, epsilon=1e-5))
        assert why_not_together(layers) == cache.why_not(layers, 40) == EPSILONS
        on = generate(cycle, prompts_for(settings), OUTPUT)
        logs.append(cycle.draft_log)
    for said in optimized.counts():
        assert (said["hits"], said["errors"], list(said["reasons"])) == (0, 0, [EPSILONS])
        assert said["fallbacks"] >= on.cycles
    assert compare_drafts(*logs).agrees()


# In the cycle


def test_it_takes_what_a_cache_projects_for_all_layers_at_once(monkeypatch: Patch) -> None:
    settings, launched, launch = small(), [], launching.launch
    _, log = run(settings, "forced")

    def record(kernel: Any, device: str, grid: Any, arguments: dict[str, Any], **options: Any) -> None:
        launched.append(arguments["LAYERS"])
        launch(kernel, device, grid, arguments, **options)

    optimized.apply([CACHE, ID])
    monkeypatch.setattr(launching, "launch", record)
    on, other = run(settings, "forced")
    assert {said["id"]: (said["hits"], said["fallbacks"]) for said in optimized.counts()} == {
        CACHE: (on.cycles, 0),
        ID: (on.cycles, 0),
    }
    # One a cycle, one a prompt, and those that make the cache when it is first asked for.
    assert set(launched) == {SMALL.dflash.layers}
    assert len(launched) == on.cycles + len(on.tokens) + settings.batch + 1
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


def test_a_table_of_yarns_is_read_as_any_other() -> None:
    rope = Rope(factor=32.0, original_context=256, truncate=False)
    settings = small(replace(SMALL, dflash=replace(SMALL.dflash, rope=rope)))
    _, log = run(settings, "forced")
    optimized.apply([ID])
    on, other = run(settings, "forced")
    assert [said["hits"] for said in optimized.counts()] == [on.cycles]
    assert compare_drafts(log, other).agrees(CLOSE)


def test_a_partial_rotation_is_refused_and_said() -> None:
    settings = small(replace(SMALL, dflash=replace(SMALL.dflash, rope=Rope(partial=0.5))))
    _, log = run(settings, "forced")
    optimized.apply([ID])
    on, other = run(settings, "forced")
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"only a part of each head rotates": on.cycles})
    assert compare_drafts(log, other).agrees()


def test_a_replay_of_graphs_that_are_older_than_the_switch_is_no_hit(monkeypatch: Patch) -> None:
    cycle = Cycle(small())
    cycle.add(prompts_for(cycle.settings), OUTPUT)
    cycle.step()
    assert isinstance(cycle.drafter, DFlashDrafter)
    optimized.apply([ID])
    monkeypatch.setattr(Pass, "__call__", lambda self: None)
    cycle.drafter.context_kv()
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"its graphs were captured before the switch": 1})


@pytest.mark.parametrize("order", [(None, "it is a test"), ("it is a test", None)], ids=["last", "first"])
def test_a_cycle_in_which_one_layer_keeps_the_chain_is_no_hit(
    order: tuple[str | None, ...], monkeypatch: Patch
) -> None:
    assert len(order) == SMALL.dflash.layers
    turns = repeated(order)
    monkeypatch.setattr(switch, "why_not", lambda *_: next(turns))
    optimized.apply([ID])
    on, _ = run(small())
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"it is a test": on.cycles})


@pytest.mark.parametrize(("ids", "launches"), [([ID], 0), ([ID], 5), ([CACHE, ID], 7)])
def test_a_failure_falls_back_and_is_counted(ids: list[str], launches: int, monkeypatch: Patch) -> None:
    settings = small()
    _, log = run(settings)
    optimized.apply(ids)
    monkeypatch.setattr(launching, "launch", failing_after(launches, launching.launch))
    on, other = run(settings)
    said = next(said for said in optimized.revert() if said["id"] == ID)
    assert said["reasons"]["RuntimeError: planted"] == said["errors"] == 1
    assert said["reasons"]["it failed before (RuntimeError)"] == said["fallbacks"] == on.cycles - said["hits"]
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


# Compiled


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs comes with its Linux wheels")
@pytest.mark.parametrize(("cells", "rounding"), [(True, 1), (False, 2)])
def test_it_compiles_for_a_gpu_to_one_warp_without_contraction(
    cells: bool, rounding: int, tmp_path: Path, monkeypatch: Patch
) -> None:
    *arguments, where = given(5, 128, "meta", torch.bfloat16)
    found = compiled_for_a_gpu(
        launching, lambda: place(*arguments, where if cells else None, rounding), tmp_path, monkeypatch
    )
    code = found["norm_rotate_and_place"].asm["ptx"]
    assert found["norm_rotate_and_place"].metadata.num_warps == 1
    assert code.count("shfl.sync.bfly") == 5
    assert code.count("fma.rn.f32") == 4
