"""The Mamba metadata of several KV-cache groups on a GPU, by the installed vLLM's own builders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

import optimized  # noqa: E402
from optimized.gate import public  # noqa: E402

ID, DEVICE = "uniform-decode-metadata", "cuda"
DRAFTS, GROUPS, BLOCKS, BLOCK_SIZE, MOST = 2, 5, 40, 1056, 8
STEPS, TURNS = 200, 5
Sides = tuple[Callable[..., Any], Callable[..., Any]]


@pytest.fixture
def methods() -> Iterator[Sides]:
    """vLLM's own method, and ours in its place."""
    vllm = pytest.importorskip("vllm")
    from vllm.v1.attention.backends.mamba_attn import BaseMambaAttentionMetadataBuilder as builder

    own = vars(builder)["_compute_common_metadata"]
    optimized.apply([ID], public(vllm.__version__))
    yield own, vars(builder)["_compute_common_metadata"]
    optimized.revert()


def group(mode: str) -> Any:
    """A group's builder with its own buffers, and what it reads of a server filled in by hand."""
    from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
    from vllm.v1.kv_cache_interface import MambaSpec

    found = object.__new__(Mamba2AttentionMetadataBuilder)
    found.kv_cache_spec = object.__new__(MambaSpec)
    vars(found.kv_cache_spec).update(block_size=BLOCK_SIZE, num_speculative_blocks=DRAFTS)
    found.vllm_config = SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode=mode))
    graphs = SimpleNamespace(has_full_cudagraphs=lambda: True)
    found.compilation_config = SimpleNamespace(cudagraph_mode=graphs)
    found.reorder_batch_threshold, found.num_spec_tokens, found.use_spec_decode = 1 + DRAFTS, DRAFTS, True
    found.use_replayssm = found.use_flashinfer_replayssm = False
    found.decode_bc_pre_scratch, found.decode_cudagraph_max_bs = None, MOST
    found.state_indices_tensor_d = torch.full((MOST, 1 + DRAFTS), -7, dtype=torch.int32, device=DEVICE)
    found.decode_num_accepted_tokens = torch.full((MOST,), -7, dtype=torch.int32, device=DEVICE)
    return found


class Step:
    """What a runner hands to every group, in tensors that it writes anew for each step."""

    def __init__(self, requests: int) -> None:
        self.requests, self.random = requests, torch.Generator().manual_seed(4)
        self.lengths = torch.zeros(requests, dtype=torch.int32, device=DEVICE)
        self.accepted = torch.ones(requests, dtype=torch.int32, device=DEVICE)
        self.tables = torch.zeros(GROUPS, requests, BLOCKS, dtype=torch.int32, device=DEVICE)
        starts = torch.arange(0, 1 + requests, dtype=torch.int32) * (1 + DRAFTS)
        self.starts, self.starts_cpu = starts.to(DEVICE), starts
        self.next()

    def next(self) -> None:
        """Other lengths, blocks and accepted tokens, and flags made anew."""
        draw = partial(torch.randint, generator=self.random, dtype=torch.int32)
        self.lengths.copy_(draw(1 + DRAFTS, 35_000, (self.requests,)))
        self.accepted.copy_(draw(1, 2 + DRAFTS, (self.requests,)))
        self.tables.copy_(draw(1, 4000, tuple(self.tables.shape)))
        self.bound = self.lengths.cpu()
        self.flags = torch.zeros(self.requests, dtype=torch.bool)

    def common(self, number: int) -> Any:
        """The common metadata of a group."""
        from vllm.v1.attention.backend import CommonAttentionMetadata

        tokens = self.requests * (1 + DRAFTS)
        return CommonAttentionMetadata(
            query_start_loc=self.starts,
            query_start_loc_cpu=self.starts_cpu,
            seq_lens=self.lengths,
            seq_lens_cpu_upper_bound=self.bound,
            num_reqs=self.requests,
            num_actual_tokens=tokens,
            max_query_len=1 + DRAFTS,
            max_seq_len=BLOCKS * BLOCK_SIZE,
            block_table_tensor=self.tables[number],
            slot_mapping=self.starts,
            is_prefilling=self.flags[:],
        )


def build(method: Callable[..., Any], builders: list[Any], commons: list[Any], step: Step) -> list[Any]:
    """Each group's metadata, as its builder's `build` asks for it."""
    return [
        method(builder, common, num_accepted_tokens=step.accepted[: step.requests])
        for builder, common in zip(builders, commons, strict=True)
    ]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("requests", [1, 3, MOST])
@pytest.mark.parametrize("mode", ["none", "align"])
def test_every_field_of_every_group_and_step_is_vllms_own(methods: Sides, mode: str, requests: int) -> None:
    step, sides = Step(requests), tuple([group(mode) for _ in range(GROUPS)] for _ in methods)
    for _ in range(20):
        commons = [step.common(number) for number in range(GROUPS)]
        wanted, got = (build(method, side, commons, step) for method, side in zip(methods, sides, strict=True))
        for one, other in zip(wanted, got, strict=True):
            unlike = [
                each.name for each in fields(one) if not equal(getattr(one, each.name), getattr(other, each.name))
            ]
            assert unlike == []
        step.next()
    (said,) = optimized.counts()
    assert (said["hits"], said["errors"], said["fallbacks"]) == (20 * GROUPS, 0, 0)
    assert list(said["sorts"].values()) == [20 * (GROUPS - 1)]


def test_a_graph_that_was_captured_once_reads_what_each_step_gave_each_group(methods: Sides) -> None:
    _, ours = methods
    step, builders = Step(3), [group("align") for _ in range(GROUPS)]
    found = build(ours, builders, [step.common(number) for number in range(GROUPS)], step)
    read = [torch.zeros_like(one.state_indices_tensor_d) for one in found]
    counts = [torch.zeros_like(one.num_accepted_tokens) for one in found]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one, blocks, accepted in zip(found, read, counts, strict=True):
            blocks.copy_(one.state_indices_tensor_d)
            accepted.copy_(one.num_accepted_tokens)
    for _ in range(5):
        step.next()
        build(ours, builders, [step.common(number) for number in range(GROUPS)], step)
        graph.replay()
        for number, (blocks, accepted) in enumerate(zip(read, counts, strict=True)):
            first = ((step.lengths - 1) // BLOCK_SIZE).clamp(min=0).long()
            columns = first[:, None] + torch.arange(1 + DRAFTS, device=DEVICE)
            assert torch.equal(blocks, step.tables[number].gather(1, columns))
            assert torch.equal(accepted, step.accepted)


@pytest.mark.parametrize("mode", ["none", "align"])
def test_the_host_time_of_a_step_is_printed_beside_vllms(methods: Sides, mode: str) -> None:
    """vLLM's own took 5 x 0.35 ms on the H200, and the aim is a third of it; not judged, for the host decides it."""
    step, sides = Step(1), [[group(mode) for _ in range(GROUPS)] for _ in methods]
    commons = [step.common(number) for number in range(GROUPS)]
    taken: list[list[float]] = [[], []]
    for turn in range(TURNS * 2):
        which = turn % 2
        for _ in range(STEPS):
            given = [replace(common, is_prefilling=flags) for flags in [step.flags.clone()] for common in commons]
            began = perf_counter()
            build(methods[which], sides[which], given, step)
            taken[which].append(perf_counter() - began)
        torch.cuda.synchronize()
    stock, ours = (1e6 * median(times) for times in taken)
    print(
        f"{mode}: {GROUPS} groups take vLLM {stock:.0f} us of host time a step, ours {ours:.0f} ({ours / stock:.2f}x)"
    )
    (said,) = optimized.counts()
    assert list(said["sorts"].values()) == [STEPS * TURNS * (GROUPS - 1)]
