"""The split attention (split-kv-3d) on a GPU: bf16 and fp32 against float64, in CUDA graphs and in vLLM's layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

import optimized  # noqa: E402
from optimized.gate import public  # noqa: E402
from optimized.split_kv_3d.attention import (  # noqa: E402
    MOST_SEGMENTS,
    Context,
    Plan,
    Scratch,
    Sight,
    attend,
    plan,
    scratch_bytes,
    why_not,
)
from optimized.split_kv_3d.reference import attention as oracle  # noqa: E402

ID = "split-kv-3d"
HEAD_DIM, PAGE = 128, 16
ATOL, RTOL = 1.5e-2, 1e-2
CONTROL = 8e-6
LENGTHS = (1000, 1024, 1027, 4097, 34816)
Shape = tuple[int, int]


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


class Problem:
    """Requests of so many queries each, contexts of such lengths, and what they attend to; unseen keys are NaN."""

    def __init__(
        self,
        queries: int = 3,
        window: int = 0,
        causal: bool = True,
        sinks: bool = True,
        heads: Shape = (32, 2),
        lengths: tuple[int, ...] = LENGTHS,
        dtype: Any = torch.bfloat16,
        page: int = PAGE,
    ) -> None:
        random = torch.Generator("cuda").manual_seed(9)
        options: dict[str, Any] = {"generator": random, "device": "cuda"}
        self.queries, self.lengths, tokens = queries, lengths, queries * len(lengths)
        self.query = torch.randn(tokens, heads[0], HEAD_DIM, dtype=dtype, **options)
        pages = -(-max(lengths) // page)
        self.real = torch.randn(len(lengths) * pages, page, heads[1], 2 * HEAD_DIM, dtype=dtype, **options)
        self.table = torch.randperm(len(self.real), **options).to(torch.int32).reshape(len(lengths), pages)
        self.cache = torch.full_like(self.real, float("nan"))
        for row, length in enumerate(lengths):
            first = max(length - queries - window + 1, 0) if window else 0
            place = torch.arange(first, length, device="cuda")
            cells = self.table[row].long()[place // page], place % page
            self.cache[cells] = self.real[cells]
        keys, values = self.cache.split(HEAD_DIM, -1)
        starts = queries * torch.arange(len(lengths) + 1, device="cuda", dtype=torch.int32)
        self.context = Context(
            keys, values, self.table, torch.tensor(lengths, device="cuda", dtype=torch.int32), starts
        )
        sink = torch.randn(heads[0], **options) if sinks else None
        self.sight = Sight(HEAD_DIM**-0.5, window, causal, sink)
        self.scratch = Scratch(tokens, heads[0], HEAD_DIM, "cuda", MOST_SEGMENTS)
        self.out = torch.empty_like(self.query)

    def run(self, cut: Plan | None = None) -> Any:
        """Attend, with whatever no program writes poisoned."""
        self.poison()
        assert why_not(self.query, self.context, self.out, self.queries, self.scratch) is None
        attend(self.query, self.context, self.out, self.queries, self.sight, self.scratch, cut)
        return self.out

    def poison(self) -> None:
        for buffer, value in zip((self.out, *self.scratch.parts()), (torch.nan, torch.nan, 9.0, 1.0), strict=True):
            buffer.fill_(value)

    def wanted(self) -> Any:
        found = []
        for row, length in enumerate(self.lengths):
            keys, values = self.real[self.table[row].long()].flatten(0, 1)[:length].split(HEAD_DIM, -1)
            for index in range(self.queries):
                query = self.query[row * self.queries + index]
                found.append(oracle(query, keys, values, length - self.queries + index, self.sight))
        return torch.stack(found)


@pytest.mark.parametrize("queries", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("window", [0, 1024])
@pytest.mark.parametrize(("causal", "sinks"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_drafters_block_in_bfloat16(queries: int, window: int, causal: bool, sinks: bool) -> None:
    problem = Problem(queries, window, causal, sinks)
    torch.testing.assert_close(problem.run().double(), problem.wanted(), atol=ATOL, rtol=RTOL)


@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (16, 2), (32, 2), (64, 1)])
@pytest.mark.parametrize("queries", [1, 3, 8])
@pytest.mark.parametrize("page", [16, 48, 2192])
def test_any_number_of_heads_a_key_head_and_pages_of_any_size(heads: Shape, queries: int, page: int) -> None:
    problem = Problem(queries, 1024, heads=heads, page=page, lengths=(1024, 5000))
    torch.testing.assert_close(problem.run().double(), problem.wanted(), atol=ATOL, rtol=RTOL)


@pytest.mark.parametrize("segments", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("tile", [16, 32, 64])
def test_any_cut(segments: int, tile: int) -> None:
    problem = Problem(3, 1024)
    own = plan(problem.query, problem.context, 3, 1024, MOST_SEGMENTS)
    got = problem.run(Plan(segments, tile, own.rows, own.warps, own.stages))
    torch.testing.assert_close(got.double(), problem.wanted(), atol=ATOL, rtol=RTOL)


@pytest.mark.parametrize("sinks", [True, False])
def test_the_control_of_one_query_over_the_full_range_in_float32(sinks: bool) -> None:
    problem = Problem(1, sinks=sinks, lengths=(1024, 32768), dtype=torch.float32)
    assert float((problem.run().double() - problem.wanted()).abs().max()) <= CONTROL


def test_an_error_of_the_layout_fails_the_same_comparison() -> None:
    problem = Problem(3, 1024)
    wanted = problem.wanted()
    problem.context.lengths.sub_(1)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(problem.run().double(), wanted, atol=ATOL, rtol=RTOL)


def captured(call: Callable[[], object]) -> Any:
    """A graph of the call, which has run once before."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


@pytest.mark.parametrize("window", [0, 1024])
def test_a_graph_is_right_for_lengths_that_it_was_not_captured_with(window: int) -> None:
    longest = Problem(3, window, lengths=(34816, 9000, 2000))
    right = longest.context.lengths.clone()
    longest.context.lengths.fill_(1)
    graph = captured(lambda: attend(longest.query, longest.context, longest.out, 3, longest.sight, longest.scratch))
    longest.context.lengths.copy_(right)
    longest.poison()
    graph.replay()
    torch.testing.assert_close(longest.out.double(), longest.wanted(), atol=ATOL, rtol=RTOL)


def test_padding_of_a_graph_becomes_zeros() -> None:
    problem = Problem(3, 1024, lengths=(5000, 1024))
    problem.context.starts[2] = 3
    problem.context.lengths[1] = 0
    assert not problem.run()[3:].any()
    torch.testing.assert_close(problem.out[:3].double(), problem.wanted()[:3], atol=ATOL, rtol=RTOL)


def test_the_buffers_are_as_large_as_computed() -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    scratch = Scratch(4 * 4, 32, 128, "cuda")
    after = torch.cuda.memory_stats()["requested_bytes.all.current"]
    assert after - before == scratch.nbytes() == scratch_bytes(4 * 4, 32, 128)
    assert scratch.part.nbytes == 4 * 2**20


# In vLLM


def stock(problem: Problem, split: bool) -> Any:
    """vLLM's own Triton kernel, in 2D or in 3D."""
    kernel = pytest.importorskip("vllm.v1.attention.ops.triton_unified_attention")
    rows, heads = len(problem.query), problem.query.shape[1]
    sizes = {"output": (rows, heads, 16, HEAD_DIM), "max": (rows, heads, 16), "expsum": (rows, heads, 16)}
    three = {f"softmax_segm_{name}": torch.empty(*size, device="cuda") for name, size in sizes.items()}
    three |= {"seq_threshold_3D": 64, "num_par_softmax_segments": 16}
    problem.out.fill_(float("nan"))
    kernel.unified_attention(
        q=problem.query,
        k=problem.context.keys,
        v=problem.context.values,
        out=problem.out,
        cu_seqlens_q=problem.context.starts,
        max_seqlen_q=problem.queries,
        seqused_k=problem.context.lengths,
        max_seqlen_k=max(problem.lengths),
        softmax_scale=problem.sight.scale,
        causal=problem.sight.causal,
        window_size=(problem.sight.window - 1, 0),
        block_table=problem.context.table,
        softcap=0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        sinks=problem.sight.sinks,
        **(three if split else {}),
    )
    return problem.out.clone()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("queries", "window", "causal"), [(1, 0, True), (3, 1024, True), (4, 0, False)])
def test_it_agrees_with_vllms_own_kernels(split: bool, queries: int, window: int, causal: bool) -> None:
    problem = Problem(queries, window, causal)
    theirs = stock(problem, split)
    torch.testing.assert_close(problem.run(), theirs, atol=ATOL, rtol=RTOL)


def layer_of(problem: Problem) -> tuple[Any, Callable[[], Any]]:
    """vLLM's attention layer of a drafter with that batch, and its call."""
    backend = pytest.importorskip("vllm.v1.attention.backends.triton_attn")
    heads, key_heads = problem.query.shape[1], problem.cache.shape[2]
    sight, empty = problem.sight, torch.empty(0, device="cuda")
    window = sight.window or None
    impl = backend.TritonAttentionImpl(heads, HEAD_DIM, sight.scale, key_heads, None, window, "auto", sinks=sight.sinks)
    metadata = backend.TritonAttentionMetadata(
        num_actual_tokens=len(problem.query),
        max_query_len=problem.queries,
        query_start_loc=problem.context.starts,
        max_seq_len=max(problem.lengths),
        seq_lens=problem.context.lengths,
        block_table=problem.context.table,
        slot_mapping=torch.zeros(len(problem.query), dtype=torch.int64, device="cuda"),
        seq_threshold_3D=64,
        num_par_softmax_segments=16,
        softmax_segm_output=empty,
        softmax_segm_max=empty,
        softmax_segm_expsum=empty,
        causal=sight.causal,
        **_older_fields(backend.TritonAttentionMetadata),
    )
    scale = torch.ones(1, device="cuda")
    layer = SimpleNamespace(is_draft_layer=True, layer_name="draft.0", _k_scale=scale, _v_scale=scale, _q_scale=scale)
    cache = problem.cache.transpose(1, 2)

    def call() -> Any:
        query = problem.query
        return impl.forward(layer, query, query, query, cache, metadata, output=problem.out)

    return layer, call


def _older_fields(metadata: Any) -> dict[str, Any]:
    """What versions with cascades want to be told."""
    older = ("use_cascade", "common_prefix_len", "cu_prefix_query_lens", "prefix_kv_lens", "suffix_kv_lens")
    nothing = {"use_cascade": False, "common_prefix_len": 0}
    return {name: nothing.get(name) for name in older if name in metadata.__dataclass_fields__}


def test_it_has_hits_in_vllms_own_layer() -> None:
    vllm = pytest.importorskip("vllm")
    problem = Problem(4, 1024, causal=False, lengths=(34816,))
    layer, call = layer_of(problem)
    call()
    theirs = problem.out.clone()
    optimized.apply([ID], public(vllm.__version__))
    call()
    torch.testing.assert_close(problem.out, theirs, atol=ATOL, rtol=RTOL)
    assert not torch.equal(problem.out, theirs)
    (said,) = optimized.counts()
    assert (said["hits"], said["fallbacks"], said["errors"]) == (1, 0, 0)
    assert optimized.allocated(ID) == scratch_bytes(64 * 4, 32, 128)
    layer.is_draft_layer = False
    call()
    assert torch.equal(problem.out, theirs)
    assert optimized.counts() == [said]


class Speculator:
    """As much of a drafter as is captured: one layer."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.query_cudagraph_manager, self.call = SimpleManager(), call

    def capture(self) -> None:
        self.query_cudagraph_manager.graphs["batch"] = captured(self.call)


class SimpleManager:
    """What keeps graphs, and can be referred to weakly."""

    def __init__(self) -> None:
        self.graphs: dict[str, Any] = {}


def test_a_drafter_is_captured_with_both_and_each_graph_keeps_its_own() -> None:
    pytest.importorskip("vllm")
    from optimized.split_kv_3d.graphs import kept
    from optimized.split_kv_3d.vllm import SplitKv

    backend = pytest.importorskip("vllm.v1.attention.backends.triton_attn").TritonAttentionImpl
    problem = Problem(3, 1024, lengths=(34816,))
    _, call = layer_of(problem)
    call()
    theirs, switch, original = problem.out.clone(), SplitKv(), backend.forward
    stand_ins = switch.stand_ins()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "forward", stand_ins["TritonAttentionImpl.forward"](original))
        speculator = Speculator(call)
        stand_ins["DFlashSpeculator.capture"](Speculator.capture)(speculator)
    variants = kept.variants[speculator.query_cudagraph_manager]
    assert variants.reasons == {(1, 3): None}
    results = []
    for graphs in (variants.stock, variants.split, variants.stock):
        problem.poison()
        graphs["batch"].replay()
        results.append(problem.out.clone())
    assert torch.equal(results[0], theirs)
    assert torch.equal(results[2], theirs)
    assert not torch.equal(results[1], theirs)
    torch.testing.assert_close(results[1], theirs, atol=ATOL, rtol=RTOL)
