"""vLLM's DFlash model on a GPU with context-norm-rope and qk-norm-rope: bits of its own kernels, nodes, and times."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

sys.path.append(str(Path(__file__).parents[1]))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    vllm = pytest.importorskip("vllm", exc_type=ImportError)
    from drafter_models import Drafter, Own, Size, of_flash, of_triton
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Attention, DFlashQwen3Model

from capturing import captured, microseconds, nodes  # noqa: E402

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.context_norm_rope import OPTIMIZATION, cache_kernels  # noqa: E402
from optimized.gate import public  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.qk_norm_rope import OPTIMIZATION as HEADS_OPTIMIZATION  # noqa: E402

CONTEXT, HEADS, VERSION = OPTIMIZATION.id, HEADS_OPTIMIZATION.id, public(vllm.__version__)
NEMOTRON = {"layers": 5, "heads": 32, "key_heads": 2, "head_dim": 128, "hidden": 2688}
QWEN = {"layers": 5, "heads": 32, "key_heads": 8, "head_dim": 128, "hidden": 4096}
CACHES: dict[str, Any] = {"page": 16, "pages": 64, "longest": 40960}
BACKENDS = {"triton": of_triton, "flash": of_flash}


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    with torch.inference_mode():
        yield
    optimized.revert()


def drafter(kind: dict[str, int], tokens: int, dtype: str = "bfloat16", backend: str = "triton", **others: Any) -> Any:
    """A drafter's model on the GPU."""
    size = Size(**{**CACHES, **kind, "tokens": tokens, **others})
    return Drafter(getattr(torch, dtype), size, "cuda", impl=BACKENDS[backend])


def said(name: str) -> tuple[int, int, int]:
    """Hits, fallbacks and errors of one that is on."""
    one = next(one for one in optimized.counts() if one["id"] == name)
    return one["hits"], one["fallbacks"], one["errors"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("item", [OPTIMIZATION, HEADS_OPTIMIZATION], ids=[CONTEXT, HEADS])
def test_no_bit_differs_from_vllms_order_written_out(item: Any, dtype: str) -> None:
    with torch.inference_mode(False):
        found = [judge(item, case, Place("cuda", dtype)) for case in item.cases() if "pa" in case.name.split(",")[0]]
    assert len(found) > 8
    assert [one for one in found if not one.passed or one.unequal] == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["one tensor", "groups"])
@pytest.mark.parametrize("tokens", [1, 3, 8, 64, 300])
@pytest.mark.parametrize("kind", [NEMOTRON, QWEN], ids=["nemotron", "qwen"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_caches_hold_every_bit_of_vllms_own_kernels(
    dtype: str, kind: dict[str, int], tokens: int, how: str, backend: str
) -> None:
    stock, ours = (drafter(kind, tokens, dtype, backend) for _ in range(2))
    before = stock.caches()
    stock.place(stock.mapped(how))
    optimized.apply([CONTEXT], VERSION)
    ours.place(ours.mapped(how))
    assert said(CONTEXT) == (1, 0, 0)
    wanted = stock.caches()
    assert torch.equal(ours.caches(), wanted)
    assert torch.equal(wanted, before) == (how == "groups" and tokens == 1)


@pytest.mark.parametrize("width", [64, 256])
def test_other_widths_of_a_head(width: int) -> None:
    kind = {"layers": 2, "heads": 4, "key_heads": 2, "head_dim": width, "hidden": 512}
    stock, ours = (drafter(kind, 17) for _ in range(2))
    attended = stock.attended()
    stock.place(stock.slots)
    optimized.apply([CONTEXT, HEADS], VERSION)
    assert all(torch.equal(one, other) for one, other in zip(ours.attended(), attended, strict=True))
    ours.place(ours.slots)
    assert torch.equal(ours.caches(), stock.caches())
    assert said(CONTEXT) == said(HEADS) == (1, 0, 0)


@pytest.mark.parametrize("tokens", [1, 3, 8, 64, 300])
@pytest.mark.parametrize("kind", [NEMOTRON, QWEN], ids=["nemotron", "qwen"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_layer_attends_by_every_bit_of_vllms_own_kernels(dtype: str, kind: dict[str, int], tokens: int) -> None:
    made = drafter(kind, tokens, dtype)
    stock = made.attended()
    optimized.apply([HEADS], VERSION)
    assert all(torch.equal(one, other) for one, other in zip(made.attended(), stock, strict=True))
    assert said(HEADS) == (1, 0, 0)


def test_a_backend_of_another_kind_is_given_every_bit_that_stock_gives_it() -> None:
    size = Size(**{**CACHES, **NEMOTRON, "tokens": 9})
    stock, ours = (Drafter(torch.bfloat16, size, "cuda", impl=Own) for _ in range(2))
    stock.place(stock.slots)
    optimized.apply([CONTEXT], VERSION)
    ours.place(ours.slots)
    stored = (
        [part for layer in one.model.layers for part in layer.self_attn.attn.impl.stored] for one in (stock, ours)
    )
    assert [torch.equal(one, other) for pair in stored for one, other in zip(*pair, strict=True)] == [True] * 15
    assert said(CONTEXT) == (1, 0, 0)


def test_a_graph_is_right_for_contexts_that_are_rewritten_in_place() -> None:
    stock, held = (drafter(NEMOTRON, 24) for _ in range(2))
    optimized.apply([CONTEXT], VERSION)
    graph = captured(lambda: held.place([held.slots] * 5))
    assert said(CONTEXT) == (1, 0, 0), "one call before the capture, and no replay of a manager's"
    optimized.revert([CONTEXT])
    for _ in range(10):
        held.states.copy_(stock.states)
        held.positions.copy_(stock.positions)
        held.slots.copy_(stock.slots)
        graph.replay()
        stock.place(stock.slots)
        assert torch.equal(held.caches(), stock.caches())
        stock.draw()


def test_caches_that_are_first_seen_in_a_capture_are_left_to_vllm() -> None:
    made = drafter(NEMOTRON, 3)
    made.place(made.slots)
    optimized.apply([CONTEXT], VERSION)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.place(made.slots)
    assert said(CONTEXT) == (0, 0, 0)
    made.place(made.slots)
    assert said(CONTEXT) == (1, 0, 0)


def test_another_number_of_tokens_does_not_compile_anew() -> None:
    def compiled() -> int:
        return len(cache_kernels.norm_rotate_and_cache.device_caches[torch.cuda.current_device()][0])

    optimized.apply([CONTEXT], VERSION)
    made = drafter(NEMOTRON, 64)
    made.place(made.slots)
    before, states, positions, slots = compiled(), made.states, made.positions, made.slots
    for tokens in (1, 16, 17, 48):
        made.states, made.positions, made.slots = states[:tokens], positions[:tokens], slots[:tokens]
        made.place(made.slots)
    assert (compiled(), said(CONTEXT)) == (before, (5, 0, 0))


def both(stock: Callable[[], object], fast: Callable[[], object]) -> tuple[list[int], tuple[float, float]]:
    """The nodes of a graph of each side, and the microseconds of each, timed in turns."""
    return [nodes(captured(side)) for side in (stock, fast)], microseconds(stock, fast)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tokens", [3, 8, 64, 512])
@pytest.mark.parametrize("kind", [NEMOTRON, QWEN], ids=["nemotron", "qwen"])
def test_the_context_is_three_nodes_and_what_it_takes(
    kind: dict[str, int], tokens: int, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = drafter(kind, tokens, backend=backend)
    given = made.states, made.positions, [made.slots] * made.size.layers
    optimized.apply([CONTEXT], VERSION)
    stock = DFlashQwen3Model.precompute_and_store_context_kv.__wrapped__
    counted, (before, after) = both(lambda: stock(made.model, *given), lambda: made.place(given[2]))
    assert said(CONTEXT)[1:] == (0, 0)
    with capsys.disabled():
        print(
            f"\n{CONTEXT}, {backend}, {made.size.key_heads} key heads, {tokens} tokens, norm and projection included:"
            f" {counted[0]} nodes, {before:.1f} us -> {counted[1]} nodes, {after:.1f} us"
        )
    # A projection may be split over two kernels.
    assert counted[1] <= 4 < counted[0]


@pytest.mark.parametrize("tokens", [3, 8, 64, 512])
@pytest.mark.parametrize("kind", [NEMOTRON, QWEN], ids=["nemotron", "qwen"])
def test_a_layers_heads_are_two_nodes_fewer_and_what_they_take(
    kind: dict[str, int], tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    made = drafter(kind, tokens)
    attentions = [layer.self_attn for layer in made.model.layers]
    optimized.apply([HEADS], VERSION)
    ours, stock = DFlashQwen3Attention.forward, DFlashQwen3Attention.forward.__wrapped__

    def block(forward: Callable[..., object]) -> None:
        for attention in attentions:
            forward(attention, made.positions, made.states)

    counted, (before, after) = both(lambda: block(stock), lambda: block(ours))
    assert said(HEADS)[1:] == (0, 0)
    with capsys.disabled():
        print(
            f"\n{HEADS}, {made.size.heads}/{made.size.key_heads} heads, {tokens} tokens, {len(attentions)} layers,"
            f" projections included: {counted[0]} nodes, {before:.1f} us -> {counted[1]} nodes, {after:.1f} us"
        )
    assert counted[0] - counted[1] == 2 * len(attentions)


@pytest.mark.parametrize("tokens", [3, 24])
def test_the_host_takes_less_time_outside_of_graphs(tokens: int, capsys: pytest.CaptureFixture[str]) -> None:
    made = drafter(NEMOTRON, tokens)
    slots = [made.slots] * made.size.layers
    sides: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(12):
        on = bool(turn % 2)
        if on:
            optimized.apply([CONTEXT], VERSION)
        made.place(slots)
        torch.cuda.synchronize()
        for _ in range(50):
            begun = time.perf_counter()
            made.place(slots)
            sides[on].append((time.perf_counter() - begun) * 1e6)
            torch.cuda.synchronize()
        optimized.revert()
    stock, fast = (median(sides[on]) for on in (False, True))
    with capsys.disabled():
        print(f"\n{CONTEXT}, {tokens} tokens, host time of a call outside of graphs: {stock:.0f} us -> {fast:.0f} us")
    assert fast < stock
