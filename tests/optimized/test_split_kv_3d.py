"""The split attention's kernels, interpreted, against float64; that they compile for a GPU; buffers and plans."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from inspect import getattr_static
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402

from optimized import launching  # noqa: E402
from optimized.judging import TOLERANCES  # noqa: E402
from optimized.split_kv_3d import OPTIMIZATION, attention, kernels  # noqa: E402
from optimized.split_kv_3d.attention import (  # noqa: E402
    MOST_QUERIES,
    Context,
    Plan,
    Scratch,
    Sight,
    attend,
    plan,
    scratch_bytes,
    why_not,
)
from optimized.split_kv_3d.graphs import ELSEWHERE, Kept, Variants  # noqa: E402
from optimized.split_kv_3d.reference import attention as oracle  # noqa: E402

MIB = 2**20
PAGE, TILE, SEGMENTS, HEAD_DIM = 16, 16, 4, 16
CUT = Plan(SEGMENTS, TILE, 16, 4)
EDGES = (PAGE - 1, PAGE + 1, SEGMENTS * TILE, 85)
"""Contexts that end around a page, with a tile for each segment, and with a tile that is left over and not full."""


@dataclass(frozen=True)
class Batch:
    """Requests with as many queries each, and contexts of such lengths; unwritten keys are NaN."""

    lengths: tuple[int, ...] = EDGES
    queries: int | tuple[int, ...] = 3
    group: int = 3
    key_heads: int = 1
    page: int = PAGE
    window: int = 0
    causal: bool = True
    sinks: bool = True
    dtype: str = "float32"
    cut: Plan | None = CUT

    @property
    def name(self) -> str:
        way = f"{self.window or 'no window'}{', causal' * self.causal}{', sinks' * self.sinks}"
        return f"{self.queries} queries, {self.group} heads, {way}, {self.dtype}"

    @property
    def counts(self) -> tuple[int, ...]:
        return self.queries if isinstance(self.queries, tuple) else (self.queries,) * len(self.lengths)


class Problem:
    """One launch of a batch, its buffers poisoned, and what it must give."""

    def __init__(self, batch: Batch) -> None:
        random, dtype = torch.Generator().manual_seed(8), getattr(torch, batch.dtype)
        self.batch, heads, tokens = batch, batch.group * batch.key_heads, sum(batch.counts)
        self.query = torch.randn(tokens, heads, HEAD_DIM, generator=random).to(dtype)
        pages = -(-max(batch.lengths) // batch.page)
        shape = (len(batch.lengths) * pages, batch.page, batch.key_heads, 2 * HEAD_DIM)
        self.cache = torch.full(shape, math.nan, dtype=dtype)
        table = torch.randperm(shape[0], generator=random).reshape(-1, pages)
        self.contexts = [
            torch.randn(n, batch.key_heads, 2 * HEAD_DIM, generator=random).to(dtype) for n in batch.lengths
        ]
        for row, context in enumerate(self.contexts):
            first = max(len(context) - batch.counts[row] - batch.window + 1, 0) if batch.window else 0
            places = torch.arange(first, len(context))
            self.cache[table[row, places // batch.page], places % batch.page] = context[first:]
        starts = torch.tensor([0, *batch.counts]).cumsum(0)
        keys, values = self.cache.split(HEAD_DIM, -1)
        whose = (table, torch.tensor(batch.lengths), starts)
        self.context = Context(keys, values, *(part.to(torch.int32) for part in whose))
        sinks = torch.randn(heads, generator=random) if batch.sinks else None
        self.sight = Sight(HEAD_DIM**-0.5, batch.window, batch.causal, sinks)
        self.scratch = Scratch(tokens, heads, HEAD_DIM, "cpu", max(16, batch.cut.segments if batch.cut else 0))
        self.out = torch.full_like(self.query, math.nan)

    def run(self) -> Any:
        """Attend; a part that no program left, or that the merge should not take, is NaN and counts."""
        for buffer, poison in zip(self.scratch.parts(), (math.nan, 9.0, 1.0), strict=True):
            buffer.fill_(poison)
        longest = max(self.batch.counts)
        assert why_not(self.query, self.context, self.out, longest, self.scratch) is None
        attend(self.query, self.context, self.out, longest, self.sight, self.scratch, self.batch.cut)
        return self.out

    def wanted(self) -> Any:
        rows, token = [], 0
        for context, count in zip(self.contexts, self.batch.counts, strict=True):
            keys, values = context.split(HEAD_DIM, -1)
            for index in range(count):
                position = len(context) - count + index
                rows.append(oracle(self.query[token], keys, values, position, self.sight))
                token += 1
        return torch.stack(rows)

    def used(self) -> float:
        """The largest share of the tolerance that the result takes; infinite where it is no number."""
        got, wanted = self.run().double(), self.wanted()
        error = (got - wanted).abs() / (TOLERANCES[self.batch.dtype] * (1 + wanted.abs()))
        return float(error.nan_to_num(math.inf).max())


# The oracle


@pytest.mark.parametrize(("causal", "window", "sinks"), list(product((True, False), (0, 5), (True, False))))
def test_the_oracle_is_scaled_dot_product_attention_written_out(causal: bool, window: int, sinks: bool) -> None:
    random, length, position = torch.Generator().manual_seed(1), 13, 9
    query, keys, values = (
        torch.randn(n, h, 8, generator=random).double() for n, h in ((1, 6), (length, 2), (length, 2))
    )
    sink = torch.randn(6, generator=random).double() if sinks else None
    visible = torch.tensor(
        [(not causal or key <= position) and (not window or abs(position - key) < window) for key in range(length)]
    )
    if sink is not None:
        # A sink is a key of no value whose score is the sink's: one more number of the head, which only it has.
        query = torch.cat([query, torch.ones(1, 6, 1)], -1)
        extra = F.pad(torch.zeros(1, 2, 8), (0, 1))
        keys, values = F.pad(keys, (0, 1)), torch.cat([values, torch.zeros(1, 2, 8)])
        keys, visible = torch.cat([keys, extra]), torch.cat([visible, torch.tensor([True])])
    heads = []
    for head in range(6):
        key = keys[:, head // 3].clone()
        if sink is not None:
            key[-1, -1] = sink[head] / 0.25
        heads.append(
            F.scaled_dot_product_attention(query[:, head], key, values[:, head // 3], visible[None], scale=0.25)
        )
    got = oracle(query[0, :, :8], keys[:length, :, :8], values[:length], position, Sight(0.25, window, causal, sink))
    assert torch.allclose(got, torch.cat(heads), rtol=1e-12, atol=1e-12)


# The kernels against the oracle


def sampled() -> Iterator[Batch]:
    """Every number of queries with every group, and any other two choices together in some of them."""
    ways = list(product((0, 21, 40), (True, False), (True, False), ("float32", "float16")))
    for queries, (index, group), shift in product(range(1, MOST_QUERIES + 1), enumerate((1, 3, 8, 16)), (0, 8)):
        window, causal, sinks, dtype = ways[(queries + 3 * index + shift) % len(ways)]
        rows = min(max(16, 1 << (queries * group - 1).bit_length()), 64)
        yield Batch(EDGES, queries, group, 1, PAGE, window, causal, sinks, dtype, Plan(SEGMENTS, TILE, rows, 4))


SAMPLED = list(sampled())


def test_the_sample_has_every_two_of_all_that_can_be_chosen() -> None:
    chosen = [(b.queries, b.group, b.window, b.causal, b.sinks, b.dtype) for b in SAMPLED]
    domains = [set(values) for values in zip(*chosen, strict=True)]
    assert [len(domain) for domain in domains] == [8, 4, 3, 2, 2, 2]
    for one, other in combinations(range(6), 2):
        assert {(each[one], each[other]) for each in chosen} == set(product(domains[one], domains[other]))


@pytest.mark.parametrize("batch", SAMPLED, ids=lambda batch: batch.name)
def test_a_block_attends_as_float64_says(batch: Batch) -> None:
    assert Problem(batch).used() < 1


@pytest.mark.parametrize("length", [*range(61, 68), 95, 96, 97])
def test_a_context_of_any_length_around_the_edges_of_tiles_and_segments(length: int) -> None:
    assert Problem(Batch((length,), 3, window=33)).used() < 1


@pytest.mark.parametrize(("causal", "dtype"), [(True, "float32"), (False, "float16")])
def test_a_window_of_1024_at_its_edges(causal: bool, dtype: str) -> None:
    batch = Batch((1023, 1025, 1026, 2049), 3, 16, window=1024, causal=causal, dtype=dtype, cut=Plan(8, 32, 64, 4))
    assert Problem(batch).used() < 1


@pytest.mark.parametrize(
    "batch",
    [
        Batch((40, 64, 17), (1, 3, 2)),
        Batch((3, 1, 2), 3),
        Batch((0, 5), (0, 2)),
        Batch((33, 90), 2, key_heads=2),
        Batch((50, 97), 3, page=48, cut=Plan(4, 32, 16, 4)),
        Batch((50, 97), 3, page=64, cut=Plan(8, 32, 16, 4)),
        Batch((70,), 8, 5, cut=Plan(4, 16, 16, 4)),
        Batch((70,), 3, cut=Plan(1, 16, 16, 4)),
        Batch((200,), 3, window=150, cut=None),
        Batch((20,), 3, cut=Plan(64, 16, 16, 4)),
    ],
    ids=[
        "unequal queries",
        "fewer keys than queries",
        "a row of padding",
        "two key heads",
        "pages of three tiles of a half",
        "pages of whole tiles",
        "several blocks of rows",
        "one segment",
        "its own plan",
        "more segments than tiles",
    ],
)
def test_shapes_of_their_own(batch: Batch) -> None:
    assert Problem(batch).used() < 1


def test_a_plan_that_the_buffers_have_no_room_for_writes_nothing() -> None:
    problem = Problem(Batch((20,)))
    with pytest.raises(ValueError, match="do not fit into the buffers"):
        attend(problem.query, problem.context, problem.out, 3, problem.sight, problem.scratch, Plan(17, 16, 16, 4))
    assert problem.out.isnan().all()


def test_rows_that_are_no_requests_become_zeros() -> None:
    problem = Problem(Batch((40, 64), 3))
    for buffer in (problem.out, *problem.scratch.parts()):
        buffer.fill_(1.0)
    problem.context.starts.fill_(0)
    attend(problem.query, problem.context, problem.out, 3, problem.sight, problem.scratch, problem.batch.cut)
    assert not problem.out.any()


def test_padding_behind_the_requests_becomes_zeros() -> None:
    problem = Problem(Batch((40, 64), 3))
    problem.context.starts[2] = 3
    assert not problem.run()[3:].any()
    assert torch.allclose(problem.out[:3].double(), problem.wanted()[:3], atol=1e-5)


# Planted faults


FAULTS = {
    "a segment has no end": ("(segment + 1) * tiles // segments", "segment * tiles // segments"),
    "the last tile is nobody's": ("(segment + 1) * tiles // segments", "(segment + 1) * (tiles - 1) // segments"),
    "segments overlap": (
        "low, high = first_tile + segment * tiles // segments",
        "low, high = first_tile + segment // 2",
    ),
    "a segment is of the whole context": ("first_tile = first // TILE", "first_tile = 0 * first"),
    "the window is one longer": (
        "position[:, None] - key[None, :] < WINDOW",
        "position[:, None] - key[None, :] <= WINDOW",
    ),
    "a query does not see itself": ("key[None, :] <= position[:, None]", "key[None, :] < position[:, None]"),
    "a query sees the next one": ("key[None, :] <= position[:, None]", "key[None, :] <= position[:, None] + 1"),
    "what was never written is read": ("(key >= first) & (key < length)", "key >= first"),
    "what the window left is read": ("(key >= first) & (key < length)", "key < length"),
    "an empty segment says nothing": ("tl.store(weight + cell, tl.full([ROWS], 0.0, tl.float32), mask=live)", "pass"),
    "rows share their scratch": ("* segments + segment", "* segments"),
    "the sum is not rescaled": ("total = total * shrink +", "total = total +"),
    "another page": ("tl.load(pages + tile * TILE // PAGE)", "tl.load(pages)"),
    "a sink counts for nothing": ("total += tl.exp2(sink - base)", "total += 0.0"),
    "segments weigh the same": ("tl.exp2(peaks - base)", "1.0"),
    "padding is merged": ("token + 0 * segment <", "0 * segment <"),
}
HARMLESS = {"a segment is of the whole context"}
"""Slower, as vLLM's own layout is, and as right: see the test of the layout."""


def faulty(text: str, planted: str, folder: Path) -> ModuleType:
    """The kernels with one place of their text changed."""
    source = Path(kernels.__file__).read_text()
    assert text in source
    path = folder / "faulty_kernels.py"
    path.write_text(source.replace(text, planted))
    spec = spec_from_file_location("faulty_kernels", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown() -> bool:
    """Whether the batches that follow differ from the oracle, or cannot be run."""
    long = Batch((97,), 3, cut=Plan(2, 16, 16, 4))
    batches = (Batch((85, 65), 3, window=40), Batch((64, 18), 3), Batch((20,), 2), long)
    padded = Problem(Batch((40, 64), 3))
    padded.context.starts[2] = 3
    return any(Problem(batch).used() >= 1 for batch in batches) or bool(padded.run()[3:].any())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = faulty(*FAULTS[fault], tmp_path)
    monkeypatch.setattr(kernels, "attend_to_segment", broken.attend_to_segment)
    monkeypatch.setattr(kernels, "merge_segments", broken.merge_segments)
    assert shown() == (fault not in HARMLESS)


def test_nothing_shows_without_a_fault() -> None:
    assert not shown()


# The layout, plans and buffers


def busy(problem: Problem, segments: int) -> list[int]:
    """How many segments have something to do for each token and head."""
    problem.run()
    tokens, heads = problem.query.shape[:2]
    weights = problem.scratch.weight[: tokens * heads * segments].reshape(-1, segments)
    return (weights > 0).sum(1).tolist()


@pytest.mark.parametrize("length", [1100, 34000])
def test_a_window_is_shared_by_all_segments_however_long_the_context_is(length: int) -> None:
    assert min(busy(Problem(windowed(length)), 16)) == 16


def test_segments_of_the_whole_context_would_leave_a_window_to_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = faulty(*FAULTS["a segment is of the whole context"], tmp_path)
    monkeypatch.setattr(kernels, "attend_to_segment", full.attend_to_segment)
    assert max(busy(Problem(windowed(8000)), 16)) <= 4


def windowed(length: int) -> Batch:
    """One request of that length, of which 1024 tokens are seen."""
    return Batch((length,), 3, 1, page=64, window=1024, cut=Plan(16, 32, 16, 4))


def drafters(requests: int, queries: int, dtype: str = "bfloat16", key_heads: int = 2) -> tuple[Any, Context]:
    """Shapes of a drafter with 32 heads of 128; nothing is in the tensors."""
    query = torch.empty(requests * queries, 32, 128, dtype=getattr(torch, dtype), device="meta")
    cache = torch.empty(4, 16, key_heads, 128, dtype=query.dtype, device="meta")
    ids = [
        torch.empty(*size, dtype=torch.int32, device="meta") for size in ((requests, 2), (requests,), (requests + 1,))
    ]
    return query, Context(cache, cache, *ids)


@pytest.mark.parametrize(
    ("requests", "queries", "window", "room", "wanted"),
    [
        (1, 3, 0, 128, Plan(128, 32, 64, 4, 5)),
        (1, 3, 1024, 128, Plan(64, 32, 64, 4)),
        (1, 3, 16384, 128, Plan(128, 32, 64, 4, 5)),
        (4, 3, 0, 128, Plan(32, 32, 64, 4, 5)),
        (64, 3, 0, 128, Plan(8, 32, 64, 4, 5)),
        (1, 3, 0, 21, Plan(16, 32, 64, 4, 5)),
        (1, 1, 16, 128, Plan(2, 32, 16, 4)),
        (1, 8, 0, 128, Plan(128, 32, 128, 8, 4)),
    ],
)
def test_a_plan_fills_the_gpu_and_stays_within_the_window_and_the_buffers(
    requests: int, queries: int, window: int, room: int, wanted: Plan
) -> None:
    query, context = drafters(requests, queries)
    assert plan(query, context, queries, window, room) == wanted


@pytest.mark.parametrize(("threshold", "before", "after"), [(64, 16, 64), (4, 1, 4)])
def test_the_memory_is_that_of_the_write_up(threshold: int, before: int, after: int) -> None:
    for queries, parts in ((1, before), (4, after)):
        scratch = Scratch(threshold * queries, 32, 128, "meta")
        assert scratch.part.nbytes == parts * MIB
        assert scratch.peak.nbytes == scratch.weight.nbytes == parts * MIB // 128
        assert scratch.nbytes() == scratch_bytes(threshold * queries, 32, 128) == parts * MIB * 65 // 64


def test_what_is_allocated_is_what_was_computed() -> None:
    def alive() -> int:
        gc.collect()
        found = [one.untyped_storage() for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
        return sum({one.data_ptr(): one.nbytes() for one in found}.values())

    before = alive()
    scratch = Scratch(12, 6, 24, "cpu")
    assert alive() - before == scratch_bytes(12, 6, 24) == 4 * 12 * 6 * 16 * (32 + 2)
    assert scratch.segments(12, 6, 24) == 16
    assert scratch.segments(3, 6, 24) == 64
    assert scratch.segments(13, 6, 24) == 14


class Captured(NamedTuple):
    """What vLLM says of a batch that it has a graph of."""

    num_reqs: int
    num_tokens: int
    uniform_token_count: int | None = 3
    max_query_len: int | None = None


def test_a_batch_keeps_vllms_graph_unless_its_own_was_captured_for_just_such_queries() -> None:
    sizes = ((1, 3), (2, 6), (4, 12), (1, 4))
    one, two, lost, mixed = (Captured(*size) for size in sizes)
    mixed = mixed._replace(uniform_token_count=None)
    stock = dict.fromkeys((one, two, lost, mixed), "stock")
    variants = Variants(stock, {one: "split", two: "split", mixed: "split"}, dict.fromkeys(sizes))
    assert variants.why_not(one) is None
    for batch in (lost, mixed._replace(max_query_len=4)):
        assert variants.why_not(batch) == "no graph of that batch was captured with it"
    assert variants.why_not(mixed) == "its graph is replayed for longer queries too"
    assert replace(variants, reasons={(2, 6): "chunked"}).why_not(two) == "chunked"
    assert replace(variants, reasons={}).why_not(one) == ELSEWHERE


def test_buffers_are_shared_by_all_that_fit_and_go_with_the_last_graphs() -> None:
    kept, query = Kept(), torch.zeros(6, 4, HEAD_DIM)
    first = kept.for_tokens(query, 12)
    assert kept.for_tokens(query[:2], 9) is first
    assert kept.for_tokens(query[:, :2], 9) is not first
    assert kept.for_tokens(query, 13) is not first
    assert kept.nbytes() == sum(scratch_bytes(n, heads, HEAD_DIM) for n, heads in ((12, 4), (9, 2), (13, 4)))

    class Manager:
        graphs: ClassVar[dict[str, str]] = {"now": "split"}

    manager = Manager()
    kept.variants[manager] = Variants({"now": "stock"}, {"now": "split"}, {})
    kept.give_back()
    assert manager.graphs == {"now": "stock"}
    assert kept.nbytes() > 0
    del manager
    gc.collect()
    kept.give_back()
    assert kept.nbytes() == 0


def test_a_server_without_a_drafter_needs_no_memory() -> None:
    from optimized.reference_cycle.settings import Settings

    settings = Settings(batch=4)
    assert OPTIMIZATION.memory(settings.without_drafter()) == 0
    shape, tokens = settings.geometry.dflash, 4 * min(settings.speculative + 1, MOST_QUERIES)
    assert OPTIMIZATION.memory(settings) == scratch_bytes(tokens, shape.heads, shape.head_dim) > 0


def changed(name: str) -> tuple[Any, ...]:
    """A batch that is taken, with one thing changed."""
    problem = Problem(Batch())
    query, context, out, longest, scratch = problem.query, problem.context, problem.out, 3, problem.scratch
    if name == "queries":
        longest = 9
    elif name == "one dtype":
        query = query.half()
    elif name == "shared out":
        context = Context(context.keys.repeat(1, 1, 2, 1), context.values, *whose(context))
    elif name == "side by side":
        query = query.transpose(1, 2).contiguous().transpose(1, 2)
    elif name == "int32":
        context = Context(context.keys, context.values, context.table, context.lengths.long(), context.starts)
    elif name == "buffers":
        scratch = Scratch(1, 1, HEAD_DIM, "cpu")
    return query, context, out, longest, scratch


def whose(context: Context) -> tuple[Any, Any, Any]:
    return context.table, context.lengths, context.starts


@pytest.mark.parametrize("name", ["queries", "one dtype", "shared out", "side by side", "int32", "buffers"])
def test_what_the_kernel_cannot_do_is_refused(name: str) -> None:
    assert name in (why_not(*changed(name)) or "")
    assert why_not(*changed("nothing")) is None


# Compiled


def arguments_of(kernel: Any, query: Any, context: Context, window: int, causal: bool) -> tuple[Any, dict[str, Any]]:
    """What a launch of the drafter's block on a GPU would be compiled from: the kernel's own arguments, recorded."""
    recorded: dict[str, Any] = {}

    def record(launched: Any, device: str, grid: tuple[int, ...], arguments: dict[str, Any], **options: int) -> None:
        if launched is kernel:
            recorded.update(arguments=arguments, options=options)

    scratch = Scratch(len(query), query.shape[1], query.shape[2], "meta")
    sinks = torch.empty(query.shape[1], dtype=torch.float32, device="meta")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "launch", record)
        attend(query, context, query, 3, Sight(0.1, window, causal, sinks), scratch)
    return recorded["options"], recorded["arguments"]


def compiled(kernel: Any, options: dict[str, int], arguments: dict[str, Any]) -> Any:
    """The kernel for an H200, compiled without one."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32"}
    assert set(arguments) == set(kernel.arg_names), "a compiled kernel takes no others, an interpreted one drops them"
    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        value = arguments[name]
        if name.isupper():
            signature[name], constants[(index,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attributes[(index,)] = f"*{names[value.dtype]}", [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs comes with its Linux wheels")
@pytest.mark.parametrize(("window", "causal", "queries"), [(1024, True, 3), (0, False, 8)])
def test_it_compiles_for_a_gpu_to_tensor_core_instructions(
    window: int, causal: bool, queries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    query, context = drafters(1, queries)
    code, merge = (
        compiled(kernel, *arguments_of(kernel, query, context, window, causal))
        for kernel in (kernels.attend_to_segment, kernels.merge_segments)
    )
    assert "mma" in code.asm["ptx"]
    assert code.metadata.shared < 227 * 1024
    assert "st.global" in merge.asm["ptx"]


def test_the_kernels_launched_on_a_cpu_leave_triton_as_it_was() -> None:
    def now() -> list[dict[str, Any]]:
        language = kernels.tl
        places = (language, language.core, language.math, language.tensor, language.dtype)
        return [{name: getattr_static(place, name) for name in dir(place)} for place in places]

    before = now()
    Problem(Batch((20,), 1)).run()
    for one, two in zip(before, now(), strict=True):
        changed = [name for name in one if one[name] is not two[name] and name not in ("__dict__", "__weakref__")]
        assert changed == []


def test_scores_are_in_base_2() -> None:
    assert pytest.approx(math.log2(math.e), rel=1e-15) == attention.LOG2_E
