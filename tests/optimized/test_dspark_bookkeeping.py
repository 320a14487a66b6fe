"""The bookkeeping kernels of the MLA drafter, interpreted: planted faults, refusals, whole cycles, the named set."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from compiling import compiled_for_a_gpu  # noqa: E402
from planting import with_a_fault  # noqa: E402
from small_cycles import OUTPUT, SMALL, expected, prompts_for, run, small, source_for  # noqa: E402

import optimized  # noqa: E402
from optimized import latent_kernels, latents, launching  # noqa: E402
from optimized.block_table_refresh import kernels as refresh_kernels  # noqa: E402
from optimized.block_table_refresh import refresh  # noqa: E402
from optimized.block_table_refresh.reference import Tables  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.context_copy_free import switch as copy_switch  # noqa: E402
from optimized.context_copy_free.reference import Rows  # noqa: E402
from optimized.gen_bookkeeping import kernels as post_kernels  # noqa: E402
from optimized.gen_bookkeeping import post  # noqa: E402
from optimized.gen_bookkeeping.post import Contexts, Pages  # noqa: E402
from optimized.gen_bookkeeping.reference import Step  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.latent_put import switch as put_switch  # noqa: E402
from optimized.latent_put.reference import Block, written_out  # noqa: E402
from optimized.latents import Cells, finish  # noqa: E402
from optimized.mla_block_fixup import fixup  # noqa: E402
from optimized.mla_block_fixup import kernels as place_kernels  # noqa: E402
from optimized.mla_block_fixup.reference import Placing  # noqa: E402
from optimized.paged import Requests, Shape  # noqa: E402
from optimized.passes import OLDER  # noqa: E402
from optimized.reference_cycle import mla  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.geometry import Rope  # noqa: E402
from optimized.reference_cycle.rope import rope_table  # noqa: E402
from spantrace.campaign.parsing import from_table  # noqa: E402
from spantrace.cli.main import run as command  # noqa: E402
from spantrace.loading import load  # noqa: E402
from spantrace.switched import switched  # noqa: E402

SET = "dspark-bookkeeping"
KERNELS = ["block-table-refresh", "context-copy-free", "gen-bookkeeping", "latent-put", "mla-block-fixup"]
IDS = [*KERNELS, "query-build"]
EXACT = ["block-table-refresh", "gen-bookkeeping", "mla-block-fixup"]
HERE = Place()
Patch = pytest.MonkeyPatch


pytestmark = pytest.mark.usefixtures("interpreted")


# Planted faults


@dataclass(frozen=True)
class Fault:
    """A place in the text of a kernel, what is written there instead, and the case of an optimization that shows it."""

    module: Any
    text: str
    planted: str
    shown_by: str
    case: str = "all accepted"


LOADED = "tl.load(source + lane, mask=real).to(tl.float32)"
FAULTS = {
    "a placeholder counts": Fault(refresh_kernels, "(entry >= 0)", "(entry >= -3)", "block-table-refresh"),
    "a placeholder stays": Fault(
        refresh_kernels, "tl.maximum(entry, 0) // divisor", "entry // divisor", "block-table-refresh"
    ),
    "rows share a count": Fault(refresh_kernels, "counts + row, tl.sum", "counts, tl.sum", "block-table-refresh"),
    "a tile is left out": Fault(
        refresh_kernels,
        "range(0, width, TILE)",
        "range(0, TILE, TILE)",
        "block-table-refresh",
        "more pages than a program's tile",
    ),
    "a mask selects": Fault(
        post_kernels,
        f"{LOADED} * (token < count).to(tl.float32)",
        f"tl.where(token < count, {LOADED}, 0.0)",
        "gen-bookkeeping",
        "none accepted",
    ),
    "a length is read where it is advanced": Fault(
        post_kernels,
        "tl.load(positions + request * ROWS)",
        "tl.load(lengths + tl.load(slots + request))",
        "gen-bookkeeping",
    ),
    "no room is left for the block": Fault(
        post_kernels, "tl.maximum(held - BLOCK, 0)", "held", "gen-bookkeeping", "pages used up"
    ),
    "the dummy grows": Fault(post_kernels, "slot == dummy", "slot < 0", "gen-bookkeeping", "idle rows"),
    "a context has no limit": Fault(
        post_kernels, "tl.minimum(start + count, longest)", "start + count", "gen-bookkeeping", "capacity reached"
    ),
    "the pages have no end": Fault(
        post_kernels,
        "tl.minimum(start + token, held - 1)",
        "start + token",
        "gen-bookkeeping",
        "8 requests with a hole in each table",
    ),
    "layers share a pool": Fault(post_kernels, "pools + layer", "pools", "gen-bookkeeping", "all accepted"),
    "one more is accepted": Fault(
        post_kernels, "(token < count)", "(token <= count)", "gen-bookkeeping", "none accepted"
    ),
    "a token sees the next": Fault(place_kernels, "column <= own", "column <= own + 1", "mla-block-fixup"),
    "a block is not counted": Fault(place_kernels, "first + BLOCK", "first", "mla-block-fixup"),
    "a block lies in one page": Fault(place_kernels, "own // PAGE", "first // PAGE", "mla-block-fixup", "20 steps"),
    "a tile of the mask is left out": Fault(
        place_kernels,
        "tl.program_id(1) * TILE +",
        "0 * TILE +",
        "mla-block-fixup",
        "more columns than a program's tile",
    ),
    "the weight comes first": Fault(
        latent_kernels, "weight * (scale * plain)", "(weight * scale) * plain", "latent-put"
    ),
    "nothing is contracted": Fault(
        latent_kernels, "tl.fma(first, cos, -(second * sin))", "first * cos - second * sin", "latent-put"
    ),
    "the other product is contracted": Fault(
        latent_kernels, "tl.fma(first, sin, second * cos)", "tl.fma(second, cos, first * sin)", "latent-put"
    ),
    "layers share a norm": Fault(
        latent_kernels, "norms + layer * LATENT", "norms", "context-copy-free", "all accepted"
    ),
    "layers share a place": Fault(
        latent_kernels,
        "target = out + (token * tl.num_programs(1) + layer)",
        "target = out + token",
        "context-copy-free",
        "all accepted",
    ),
    "halves turn, not pairs": Fault(
        latent_kernels, "LATENT + 2 * pair + 1, turned_second", "LATENT + pair + ROPE // 2, turned_second", "latent-put"
    ),
    "a block goes to other rows": Fault(
        latent_kernels, "tl.load(rows + token,", "0 * tl.load(rows + token,", "latent-put"
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shows(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    fault = FAULTS[name]
    item = optimized.discover()[fault.shown_by]
    (case,) = [case for case in item.cases() if case.name == fault.case]
    assert judge(item, case, HERE).passed
    broken = with_a_fault(fault.module, fault.text, fault.planted, tmp_path)
    (kernel,) = [each for each, found in vars(broken).items() if hasattr(found, "fn")]
    monkeypatch.setattr(fault.module, kernel, getattr(broken, kernel))
    assert not judge(item, case, HERE).passed


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning")
def test_what_was_not_accepted_is_multiplied_by_0_and_not_left_out() -> None:
    step = Step(Requests(Shape(batch=2), (1, 2), 5, HERE, None))
    step.latents[:, -1, :, 0] = float("inf")
    step.latents[:, -1, :, 1] = -1.0
    twin = Step(Requests(Shape(batch=2), (1, 2), 5, HERE, None))
    twin.latents.copy_(step.latents)
    wanted, got = twin.reference()["pool 0"], step.fast()["pool 0"]
    assert wanted.isnan().any()
    assert (wanted.signbit() & (wanted == 0)).any()
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit() | got.isnan(), wanted.signbit() | wanted.isnan())


@pytest.mark.parametrize("advertised", [True, False])
def test_a_block_reaches_the_page_of_nobody_only_where_no_room_was_left_for_it(advertised: bool) -> None:
    placing = Placing(Requests(Shape(limit=40), (4,), 9, HERE, None))
    if not advertised:
        placing.context = placing.requests.page_counts * placing.requests.shape.page
    for pages in (placing.reference()["pages"], placing.fast()["pages"]):
        assert bool((pages == 0).any()) != advertised


@pytest.mark.parametrize("size", [16, 512])
def test_the_arithmetic_that_is_written_out_is_pytorchs_but_for_the_last_bits(size: int) -> None:
    random = torch.Generator().manual_seed(1)
    raw, norm = torch.randn(3, 5, size + 8, generator=random), 1 + torch.randn(size, generator=random) / 10
    positions, table = torch.arange(15).view(3, 5), rope_table(Rope(theta=1e4), 8, 20, "cpu")
    stock = mla.norm_and_rotate_latent(raw, positions, norm, table)
    torch.testing.assert_close(written_out(raw, positions, norm, table), stock, rtol=1e-6, atol=1e-6)
    got = finish(raw.unsqueeze(2), positions, norm.unsqueeze(0), table).squeeze(2)
    torch.testing.assert_close(got, stock, rtol=1e-6, atol=1e-6)


# Refusals


def offsets(changed: str = "") -> tuple[Any, ...]:
    given: dict[str, Any] = {
        "offsets": torch.zeros(1, 3, 2, 6, dtype=torch.int32),
        "pool": 0,
        "divisor": 3,
        "table": torch.zeros(3, 6, dtype=torch.int32),
        "counts": torch.zeros(3, dtype=torch.int64),
    }
    others = {
        "wide": {"table": torch.zeros(3, 5, dtype=torch.int32)},
        "other rows": {"table": torch.zeros(4, 6, dtype=torch.int32)},
        "rows than": {"pool": 1},
        "int64": {"counts": torch.zeros(3, dtype=torch.int32)},
        "not int32": {"offsets": torch.zeros(1, 3, 2, 6, dtype=torch.int64)},
        "side by side": {"offsets": torch.zeros(1, 3, 2, 12, dtype=torch.int32)[..., ::2]},
        "less than 1": {"divisor": 0},
    }
    return tuple({**given, **others.get(changed, {})}.values())


@pytest.mark.parametrize(
    "word", ["wide", "other rows", "rows than", "int64", "not int32", "side by side", "less than 1"]
)
def test_tables_that_the_kernel_cannot_decode_are_refused(word: str) -> None:
    assert word in (refresh.why_not(*offsets(word)) or "")
    assert refresh.why_not(*offsets()) is None


def kept(changed: str = "") -> tuple[Any, ...]:
    step = Step(Requests(Shape(), (2,), 5, HERE, None))
    requests, values, positions, pools = step.requests, step.latents, step.positions, step.pools
    table, counts, lengths = requests.table, requests.counts, requests.lengths
    if changed == "shape than the pools":
        values = values[:, :, :1]
    elif changed == "differ":
        pools = [pools[0], pools[1][:, :, :, :2]]
    elif changed == "one dtype":
        pools = [pool.half() for pool in pools]
    elif changed == "at most 4 bytes":
        values, pools = values.double(), [pool.double() for pool in pools]
    elif changed == "not int64":
        counts = counts.int()
    elif changed == "tables not int32":
        table = table.long()
    elif changed == "other rows":
        table = table[1:]
    elif changed == "not dense":
        values = values.transpose(0, 1).contiguous().transpose(0, 1)
    contexts = Contexts(lengths, requests.slots, step.visible, 20)
    return values, positions, counts, Pages.of(table, requests.page_counts, pools), contexts


@pytest.mark.parametrize(
    "words",
    [
        "shape than the pools",
        "other rows",
        "differ",
        "one dtype",
        "at most 4 bytes",
        "not int64",
        "tables not int32",
        "not dense",
    ],
)
def test_latents_that_the_kernel_cannot_keep_are_refused(words: str) -> None:
    assert words in (post.why_not(*kept(words)) or "")
    assert post.why_not(*kept()) is None


def test_blocks_that_the_kernel_cannot_place_are_refused() -> None:
    placing = Placing(Requests(Shape(), (2,), 5, HERE, None))
    context, table, out = placing.context, placing.requests.table, placing.out
    assert fixup.why_not(context, table, out) is None
    others = {
        "shapes": (context[1:], table, out),
        "int64": (context.int(), table, out),
        "int32": (context, table.long(), out),
        "boolean": (context, table, replace(out, mask=out.mask.int())),
        "dense": (context, table.t().contiguous().t(), out),
    }
    for word, given in others.items():
        assert word in (fixup.why_not(*given) or "")


def finished(changed: str = "") -> tuple[Any, ...]:
    raw, positions, norms = torch.zeros(2, 3, 1, 20), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(1, 16)
    table, pool, cells = torch.zeros(9, 4), torch.zeros(5, 1, 1, 4, 20), torch.zeros(2, 3, dtype=torch.int64)
    if changed == "norms or positions":
        positions = positions[1:]
    elif changed == "power of two":
        raw, norms, pool = raw[..., :18].contiguous(), norms[:, :14].contiguous(), pool[..., :18].contiguous()
    elif changed == "rotary table":
        table = table.half()
    elif changed == "one dtype":
        norms = norms.half()
    elif changed == "one layer's":
        cells = cells[1:]
    elif changed == "not int64":
        positions = positions.int()
    elif changed == "dense":
        raw = torch.zeros(2, 3, 1, 40)[..., ::2]
    return raw, positions, norms, table, Cells(pool, cells, cells)


@pytest.mark.parametrize(
    "words", ["norms or positions", "power of two", "rotary table", "one dtype", "one layer's", "not int64", "dense"]
)
def test_latents_that_the_kernel_cannot_finish_are_refused(words: str) -> None:
    assert words in (latents.why_not(*finished(words)) or "")
    assert latents.why_not(*finished()) is None


def test_a_cpu_that_is_not_to_interpret_runs_stock_and_says_why(monkeypatch: Patch) -> None:
    settings = small(drafter="dspark")
    off, log = run(settings)
    optimized.apply(KERNELS)
    monkeypatch.delenv(launching.INTERPRET)
    on, other = run(settings)
    why = launching.why_no_kernels("cpu")
    assert why
    for said in optimized.revert():
        assert (said["hits"], said["errors"]) == (0, 0)
        assert set(said["reasons"]) == {why}
        assert said["fallbacks"] >= on.cycles
    assert on.tokens == off.tokens
    assert compare_drafts(log, other).agrees()


# Whole cycles


@pytest.mark.parametrize(
    "changes",
    [
        {"draft_length": 1, "batch": 8},
        {"draft_length": 7, "batch": 1, "dtype": "float16"},
        {"geometry": replace(SMALL, longest_draft_context=25), "page_size": 5},
    ],
    ids=["a block of one", "a block of seven", "a limit within a page"],
)
def test_those_that_only_copy_change_no_bit_of_any_draft(changes: dict[str, Any]) -> None:
    settings = small(**{"geometry": SMALL, **changes, "drafter": "dspark"})
    _, log = run(settings, "forced")
    optimized.apply(EXACT)
    on, other = run(settings, "forced")
    assert on.tokens == expected(settings)
    for said in optimized.revert():
        assert (said["hits"], said["fallbacks"], said["errors"]) == (on.cycles, 0, 0)
    assert compare_drafts(log, other).agrees()


def failing(*_: Any, **__: Any) -> None:
    raise RuntimeError("planted")


@pytest.mark.parametrize(
    ("name", "owner", "attribute"),
    [
        ("block-table-refresh", refresh, "launch"),
        ("gen-bookkeeping", post, "launch"),
        ("mla-block-fixup", fixup, "launch"),
        ("latent-put", put_switch, "finish"),
        ("block-table-refresh", refresh, "why_no_kernels"),
        ("gen-bookkeeping", post, "why_no_kernels"),
        ("latent-put", latents, "why_no_kernels"),
    ],
)
def test_a_kernel_or_a_guard_that_fails_is_counted_and_stock_answers(
    name: str, owner: Any, attribute: str, monkeypatch: Patch
) -> None:
    settings = small(drafter="dspark")
    _, log = run(settings, "forced")
    optimized.apply([name])
    cycle = Cycle(settings, source_for("forced", settings))
    cycle.add(prompts_for(settings), OUTPUT)
    cycle.step()
    (said,) = optimized.counts()
    assert (said["hits"], said["errors"]) == (1, 0)
    monkeypatch.setattr(owner, attribute, failing)
    on, other = run(settings, "forced")
    (said,) = optimized.revert()
    assert said["hits"] == 1
    assert said["reasons"]["RuntimeError: planted"] == said["errors"] > 0
    assert said["fallbacks"] + said["errors"] >= on.cycles
    assert compare_drafts(log, other).agrees()


def test_a_prompt_that_fails_says_nothing_of_a_graph_that_holds_the_kernel(monkeypatch: Patch) -> None:
    cycle = Cycle(small(drafter="dspark"))
    cycle.add(prompts_for(cycle.settings), OUTPUT)
    optimized.apply(["context-copy-free"])
    cycle.step()
    drafter: Any = cycle.drafter
    drafter.context_pass._run = lambda: None  # as where a graph is replayed, which calls nothing
    monkeypatch.setattr(copy_switch, "finish", failing)
    drafter.remember_prompt(0, 0, torch.zeros(5, drafter.captured.shape[2]))
    cycle.step()
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (2, {"RuntimeError: planted": 1})


@pytest.mark.parametrize("name", ["gen-bookkeeping", "context-copy-free"])
def test_a_cycle_whose_graphs_are_older_than_the_switch_is_no_hit(name: str) -> None:
    settings = small(drafter="dspark")
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings), OUTPUT)
    cycle.step()
    drafter: Any = cycle.drafter
    before = drafter.context_lengths.clone()
    drafter.context_pass._run = lambda: None  # as where a graph is replayed, which calls nothing
    optimized.apply([name])
    cycle.step()
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {OLDER: 1})
    assert (drafter.context_lengths != before).any()


# The named set


def test_the_set_is_what_the_folders_say() -> None:
    assert optimized.sets()[SET] == optimized.select(SET) == IDS
    assert optimized.select("dspark-aux-stream") == ["aux-stream-context"]
    assert {optimized.discover()[name].drafters for name in KERNELS} == {("dspark",)}


def test_a_plan_may_name_the_set() -> None:
    arms = from_table({"target": "built-in", "optimize": [SET], "arm": [{"name": "own", "on": ["accept", SET]}]}).arms
    assert {name: list(arm.on) for arm in arms for name in [arm.name] if name in ("all", "own")} == {
        "all": IDS,
        "own": ["accept", *IDS],
    }


def test_the_set_can_be_run_by_its_name_and_is_listed(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = [
        "--batch",
        "2",
        "--draft-length",
        "2",
        "--context",
        "48",
        "--device",
        "cpu",
        "--cycles",
        "8",
        "--warmup",
        "2",
    ]
    assert command(["run", *quick, "--drafter", "dspark", "--optimize", SET, "-o", "a.spantrace"]) == 0
    said = switched(load(Path("a.spantrace")).header)
    assert [one.id for one in said] == IDS
    assert all(one.hits > 0 and not one.errors for one in said)
    capsys.readouterr()
    assert command(["optimizations", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["sets"][SET] == IDS
    assert command(["optimizations"]) == 0
    assert f"{SET}" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU for the kernels")
def test_all_says_what_it_leaves_out(tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(launching.INTERPRET)
    quick = [
        "--batch",
        "1",
        "--draft-length",
        "1",
        "--context",
        "32",
        "--device",
        "cpu",
        "--cycles",
        "8",
        "--warmup",
        "1",
    ]
    assert command(["run", *quick, "--optimize", "all", "-o", "a.spantrace"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    for name in KERNELS:
        assert name in said
    assert launching.why_no_kernels("cpu") in said


@pytest.mark.parametrize("text", ["all", "latent-put"])
def test_a_cycle_on_the_cpu_of_a_machine_with_a_gpu_goes_without(
    text: str, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(launching.INTERPRET)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert set(IDS) <= set(optimized.select("all"))
    small_run = "--device cpu --batch 1 --draft-length 1 --context 32 --cycles 8 --warmup 1 --drafter dspark"
    ended = command(["run", *small_run.split(), "--optimize", text, "-o", "a.spantrace"])
    said = " ".join(capsys.readouterr().err.split())
    assert launching.why_no_kernels("cpu") in said
    assert "ValueError" not in said
    if text == "all":
        assert ended == 0
        assert "query-build" in [one.id for one in switched(load(Path("a.spantrace")).header)]
        assert not set(KERNELS) & {one.id for one in switched(load(Path("a.spantrace")).header)}
    else:
        assert ended != 0
        assert "latent-put cannot be applied: there is no GPU" in said


# Compiled

SHAPE = Shape(batch=2, drafts=7, block=7, page=64, layers=5, latent=512, rope=64)


def problem_of(name: str) -> Any:
    """A batch of the size of Kimi K3's drafter; tensors that are on no CPU are launched on as a GPU's are."""
    kinds = {
        "block-table-refresh": Tables,
        "context-copy-free": Rows,
        "gen-bookkeeping": Step,
        "latent-put": Block,
        "mla-block-fixup": Placing,
    }
    problem = kinds[name](Requests(SHAPE, (8,), 5, Place("cpu", "bfloat16"), None))
    for key, value in vars(problem).items():
        if isinstance(value, torch.Tensor):
            setattr(problem, key, value.to("meta"))
    return problem


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs comes with its Linux wheels")
@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("block-table-refresh", refresh),
        ("gen-bookkeeping", post),
        ("mla-block-fixup", fixup),
        ("latent-put", latents),
        ("context-copy-free", latents),
    ],
)
def test_it_compiles_for_a_gpu(name: str, launcher: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv(launching.INTERPRET)
    problem = problem_of(name)
    (code,) = compiled_for_a_gpu(launcher, problem.run, tmp_path, monkeypatch).values()
    assert "st.global" in code.asm["ptx"]
    if launcher is latents:
        assert code.metadata.num_warps == 4
        assert "fma.rn.f32" in code.asm["ptx"]
        assert "32767" not in code.asm["ptx"], "what the interpreter needs to round to bfloat16"
