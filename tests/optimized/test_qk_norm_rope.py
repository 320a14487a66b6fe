"""The kernel of a block's heads: its order, its guard, a look at the context's rotation, and what a wrong one costs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402
from compiling import compiled_for_a_gpu  # noqa: E402
from exact_heads import in_float64  # noqa: E402
from planting import failing_after, with_a_fault  # noqa: E402
from small_cycles import OUTPUT, SMALL, expected, prompts_for, run, small  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.head_order import WIDTHS, rms_norm_in_order  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.qk_norm_rope import OPTIMIZATION, kernels  # noqa: E402
from optimized.qk_norm_rope.heads import CHECKED, assert_same_rope, norm_and_rotate, why_not, why_not_here  # noqa: E402
from optimized.qk_norm_rope.switch import keys_of_context  # noqa: E402
from optimized.reference_cycle.acceptance import Forced  # noqa: E402
from optimized.reference_cycle.attention import HeadNorms, qk_norm_rope  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, autoregressive, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.dflash import DFlashDrafter  # noqa: E402
from optimized.reference_cycle.geometry import Rope  # noqa: E402
from optimized.reference_cycle.graphs import Pass  # noqa: E402
from optimized.reference_cycle.rope import rope_table, yarn_scale  # noqa: E402

ID, CLOSE = OPTIMIZATION.id, TOLERANCES["float32"]
Patch = pytest.MonkeyPatch


pytestmark = pytest.mark.usefixtures("interpreted")


def norms_of(width: int = 16, heads: int = 4, kv_heads: int = 2, **changes: Any) -> HeadNorms:
    random, rope = torch.Generator().manual_seed(2), changes.pop("rope", Rope(theta=1e4))
    query, key = (1 + torch.randn(width, generator=random) / 10 for _ in range(2))
    return replace(HeadNorms(query, key, rope_table(rope, width, 4200, "cpu"), heads, kv_heads, rope), **changes)


# The order of the arithmetic


@pytest.mark.parametrize("width", WIDTHS)
def test_the_order_written_out_is_an_rms_norm(width: int) -> None:
    x, weight = torch.randn(64, width), torch.rand(width) + 0.5
    got = rms_norm_in_order(x, weight, 1e-6)
    wanted = F.rms_norm(x.double(), (width,), weight.double(), 1e-6)
    torch.testing.assert_close(got.double(), wanted, rtol=5e-7, atol=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_it_is_no_worse_than_stock_against_float64(dtype: str) -> None:
    norms = norms_of(128)
    norms = replace(norms, query=norms.query.to(getattr(torch, dtype)), key=norms.key.to(getattr(torch, dtype)))
    qkv = torch.randn(24, 8 * 128, generator=torch.Generator().manual_seed(4)).to(norms.query.dtype)
    positions = torch.arange(24) * 100
    split = qkv.unflatten(-1, (-1, 128)).split((norms.heads, norms.kv_heads, norms.kv_heads), dim=1)
    wanted = [
        in_float64(part, norm, positions, norms.table)
        for part, norm in zip(split[:2], (norms.query, norms.key), strict=True)
    ]
    stock, fast = (
        max(float((got.double() - right).abs().max()) for got, right in zip(made[:2], wanted, strict=True))
        for made in (qk_norm_rope(qkv, positions, norms), norm_and_rotate(qkv, positions, norms))
    )
    assert 0 < fast <= 2 * stock


FAULTS = {
    "lanes are not halved in order": ("[ROWS, WARPS, 2, 16]), 2)", "[ROWS, WARPS, 16, 2]), 3)"),
    "a part is left out": ("static_range(4)", "static_range(3)"),
    "the weight is multiplied first": (
        "low_norm * (scale * tl.load(x).to(tl.float32))",
        "low_norm * scale * tl.load(x).to(tl.float32)",
    ),
    "the norm is not rounded": ("first = first.to(qkv.dtype.element_ty).to(tl.float32)", "first = first + 0.0"),
    "keys have the norm of queries": ("tl.where(is_query, query_norm, key_norm)", "query_norm"),
    "it turns the other way": ("first * cos - second * sin", "first * cos + second * sin"),
    "all turn as the first one": ("tl.load(positions + token)", "tl.load(positions + 0 * token)"),
    "no epsilon": ("(1.0 / HEAD_DIM) + epsilon", "(1.0 / HEAD_DIM)"),
    "the second half is not written": ("tl.store(out + HEAD_DIM // 2,", "tl.store(out,"),
}
SHOWING = ("heads of 128", "odd shapes", "another epsilon", "half precision", "heads of 256")


def shown() -> bool:
    chosen = [case for case in OPTIMIZATION.cases() if case.name in SHOWING]
    return not all(judge(OPTIMIZATION, case, Place()).passed for case in chosen)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault: str, tmp_path: Path, monkeypatch: Patch) -> None:
    broken = with_a_fault(kernels, *FAULTS[fault], tmp_path)
    assert not shown()
    monkeypatch.setattr(kernels, "norm_and_rotate_heads", broken.norm_and_rotate_heads)
    assert shown()


def test_a_machine_that_adds_up_in_another_order_cannot_apply_it(tmp_path: Path, monkeypatch: Patch) -> None:
    from optimized import pinning

    broken = with_a_fault(kernels, *FAULTS["lanes are not halved in order"], tmp_path)
    monkeypatch.setattr(kernels, "norm_and_rotate_heads", broken.norm_and_rotate_heads)
    monkeypatch.setattr(pinning, "_said", {})
    with pytest.raises(optimized.SpantraceError, match=rf"^{ID} cannot be applied: .* elements differ"):
        optimized.apply([ID])


# The guard


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("scaled, as by YaRN", {"rope": Rope(theta=1e4, factor=32.0)}),
        ("only a part of each head", {"rope": Rope(theta=1e4, partial=0.5)}),
        ("a head norm is missing", {"query": torch.ones(0)}),
        ("another dtype than its heads", {"key": torch.ones(16, dtype=torch.float16)}),
        ("not dense float32", {"table": torch.zeros(4200, 16, dtype=torch.float16)}),
        ("not dense float32", {"table": torch.zeros(16, 4200).T}),
        ("do not lie side by side", {"key": torch.ones(32)[::2]}),
    ],
)
def test_what_the_kernel_does_not_do_is_refused(reason: str, changes: dict[str, Any]) -> None:
    assert why_not(torch.float32, norms_of()) is None
    assert reason in (why_not(torch.float32, norms_of(**changes)) or "")


def test_heads_that_lie_otherwise_or_are_of_another_dtype_are_refused() -> None:
    qkv, norms = torch.ones(3, 8 * 16), norms_of()
    assert why_not_here(qkv, norms) is None
    assert "side by side" in (why_not_here(qkv.T.contiguous().T, norms) or "")
    assert "another dtype" in (why_not_here(qkv.half(), norms) or "")


def test_heads_and_numbers_that_no_case_covers_are_refused(monkeypatch: Patch) -> None:
    assert "heads of 24" in (why_not(torch.float32, norms_of(24)) or "")
    double = norms_of()
    double = replace(double, query=double.query.double(), key=double.key.double())
    assert "in float64" in (why_not(torch.float64, double) or "")
    on_gpu = replace(double, query=double.query.float(), key=double.key.float(), table=double.table.to("meta"))
    assert "in float32" in (why_not(torch.float32, on_gpu) or "")
    monkeypatch.delenv(launching.INTERPRET)
    assert "no GPU" in (why_not(torch.float32, norms_of()) or "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope": Rope(factor=32.0, original_context=256)}, "its rotary frequencies are scaled, as by YaRN"),
        ({"rope": Rope(partial=0.5)}, "only a part of each head rotates"),
        ({"head_dim": 24}, "its order of arithmetic is not proven for heads of 24"),
    ],
)
def test_a_refused_drafter_drafts_as_stock_does_and_says_why(changes: dict[str, Any], reason: str) -> None:
    settings = small(replace(SMALL, dflash=replace(SMALL.dflash, **changes)))
    _, log = run(settings, "forced")
    optimized.apply([ID])
    on, other = run(settings, "forced")
    (said,) = optimized.counts()
    assert (said["hits"], said["errors"], said["reasons"]) == (0, 0, {reason: on.cycles})
    assert compare_drafts(log, other).agrees()


def test_a_replay_of_graphs_that_are_older_than_the_switch_is_no_hit(monkeypatch: Patch) -> None:
    cycle = Cycle(small())
    cycle.add(prompts_for(cycle.settings), OUTPUT)
    cycle.step()
    drafter = cycle.drafter
    assert isinstance(drafter, DFlashDrafter)
    optimized.apply([ID])
    monkeypatch.setattr(Pass, "__call__", lambda self: None)
    drafter.forward()
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"its graphs were captured before the switch": 1})


@pytest.mark.parametrize("launches", [0, 2, 7])
def test_a_failure_falls_back_and_is_counted(launches: int, monkeypatch: Patch) -> None:
    settings = small()
    _, log = run(settings)
    optimized.apply([ID])
    monkeypatch.setattr(launching, "launch", failing_after(launches, launching.launch))
    on, other = run(settings)
    (said,) = optimized.revert()
    assert said["reasons"]["RuntimeError: planted"] == said["errors"] == 1
    assert said["reasons"]["it failed before (RuntimeError)"] == said["fallbacks"] == on.cycles - said["hits"]
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


# One table, both paths


def context_by(norms: HeadNorms, *others: tuple[int, float]) -> Any:
    """The context's way, by a table that differs at some positions."""
    table = norms.table.clone()
    for position, change in others:
        table[position, 3] += change
    return lambda qkv, positions, given: keys_of_context(table, qkv, positions, given)


def test_block_and_context_rotate_to_the_same_bits() -> None:
    norms = norms_of()
    assert_same_rope(norm_and_rotate, context_by(norms), norms)


@pytest.mark.parametrize("position", [*CHECKED[1:], 4199])
def test_a_table_that_differs_in_one_number_is_refused(position: int) -> None:
    norms = norms_of()
    with pytest.raises(optimized.SpantraceError, match=r"^the drafter's context is rotated otherwise than its block$"):
        assert_same_rope(norm_and_rotate, context_by(norms, (position, 1e-3)), norms)


def test_another_layout_is_refused() -> None:
    norms = norms_of()

    def adjacent(qkv: Any, positions: Any, given: HeadNorms) -> Any:
        keys = keys_of_context(norms.table, qkv, positions, given)
        return keys.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)

    with pytest.raises(optimized.SpantraceError, match="rotated otherwise"):
        assert_same_rope(norm_and_rotate, adjacent, norms)


@pytest.mark.parametrize("with_context", [False, True], ids=["stock context", "context-norm-rope"])
def test_a_drafter_whose_context_has_another_table_is_refused(with_context: bool) -> None:
    settings = small()
    drafts = []
    for ids in ([], [ID, *["context-norm-rope"] * with_context]):
        optimized.apply(ids)
        log = DraftLog()
        cycle = Cycle(settings, None, log)
        assert isinstance(cycle.drafter, DFlashDrafter)
        cycle.drafter.table = rope_table(Rope(theta=100.0), SMALL.dflash.head_dim, settings.capacity, "cpu")
        on = generate(cycle, prompts_for(settings), OUTPUT)
        drafts.append(log)
    said = next(said for said in optimized.counts() if said["id"] == ID)
    assert (said["hits"], said["reasons"]) == (
        0,
        {"the drafter's context is rotated otherwise than its block": on.cycles},
    )
    assert compare_drafts(*drafts).agrees(CLOSE if with_context else 0.0)


YARN = Rope(theta=100.0, factor=32.0, original_context=256, truncate=False)


def accepted_of(truncate: bool | None, settings: Any, prompts: list[list[int]]) -> tuple[DraftLog, Any]:
    """Drafts where the context is rotated by frequencies that are truncated or not, or as the block is."""
    tokens = autoregressive(replace(settings, drafter="none", draft_length=1), prompts, OUTPUT)
    log, shape = DraftLog(), settings.geometry.dflash
    cycle = Cycle(settings, Forced(tokens, range(settings.speculative + 1)), log)
    assert isinstance(cycle.drafter, DFlashDrafter)
    if truncate is not None:
        rope = replace(shape.rope, truncate=truncate)
        cycle.drafter.table = rope_table(rope, shape.head_dim, settings.capacity, "cpu", yarn_scale(rope))
    generate(cycle, prompts, OUTPUT)
    return log, cycle.drafter


def test_frequencies_that_only_one_path_truncates_change_scores_and_acceptance() -> None:
    geometry = replace(SMALL, dflash=replace(SMALL.dflash, heads=2, kv_heads=1, head_dim=64, rope=YARN))
    settings = small(geometry, batch=2, draft_length=7, context=100 + OUTPUT)
    prompts = random_prompts(settings, 4, 100)
    (honest, drafter), (same, _), (wrong, other) = (
        accepted_of(truncate, settings, prompts) for truncate in (None, False, True)
    )

    def accepted(log: DraftLog) -> float:
        """Drafts a step that stand where the honest drafter's are all right."""
        pairs = [(honest.drafts[place].tokens, draft.tokens) for place, draft in log.drafts.items()]
        return sum(int((a == b).long().cumprod(0).sum()) for a, b in pairs) / len(pairs)

    block = torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    scores = [block @ part.keys[0, 0, :100, 0].T for part in (drafter, other)]
    assert float((scores[0] - scores[1]).abs().max()) > 0.1
    assert compare_drafts(honest, same).agrees()
    assert accepted(same) == settings.speculative
    assert accepted(wrong) < 0.75 * settings.speculative


# Compiled


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs comes with its Linux wheels")
@pytest.mark.parametrize("width", [16, 128, 256])
def test_it_compiles_for_a_gpu_to_one_warp_without_contraction(width: int, tmp_path: Path, monkeypatch: Patch) -> None:
    norms, options = norms_of(width, 8, 2), {"dtype": torch.bfloat16, "device": "meta"}
    weights = torch.empty(width, **options)
    norms = replace(norms, query=weights, key=weights, table=norms.table.to("meta"))
    qkv, positions = torch.empty(8, 12 * width, **options), torch.empty(8, dtype=torch.int64, device="meta")
    found = compiled_for_a_gpu(launching, lambda: norm_and_rotate(qkv, positions, norms), tmp_path, monkeypatch)
    code = found["norm_and_rotate_heads"].asm["ptx"]
    assert found["norm_and_rotate_heads"].metadata.num_warps == 1
    lanes = min(width // 4, 32)
    assert code.count("shfl.sync.bfly") == (lanes.bit_length() - 1) * max(width // 128, 1)
    assert code.count("fma.rn.f32") == 4 * max(width // 128, 1)
    assert "rsqrt.approx" in code
