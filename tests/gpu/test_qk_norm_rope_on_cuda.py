"""qk-norm-rope's kernel on a GPU: every bit of stock's, in a graph whose inputs are rewritten, nodes and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, microseconds, nodes  # noqa: E402

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.head_order import WIDTHS, rms_norm_in_order  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.qk_norm_rope import OPTIMIZATION, kernels  # noqa: E402
from optimized.qk_norm_rope.heads import norm_and_rotate  # noqa: E402
from optimized.qk_norm_rope.reference import Block, Shape  # noqa: E402
from optimized.reference_cycle.attention import qk_norm_rope, rms_norm  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import DFlashShape, Geometry  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402

FLOOR_US, ABOVE_US = 1.36, 1.5
"""A node of a graph, and what a layer's may take more at batch 1."""
LAYERS = 5
BITWISE_TOGETHER = ["qk-norm-rope", "context-norm-rope", "masked-scatter"]


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


def block(batch: int, drafts: int, width: int = 128, dtype: str = "bfloat16") -> Block:
    shape = Shape(batch, drafts + 1, 32, 8, width, (drafts + 1, 1, 2), start=4000)
    return Block(shape, Place("cuda", dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_order_written_out_is_that_of_this_torch(width: int, dtype: str) -> None:
    x = 3 * torch.randn(1 << 14, width, device="cuda").to(getattr(torch, dtype))
    weight = torch.randn(width, device="cuda").to(x.dtype)
    assert torch.equal(rms_norm_in_order(x, weight, 1e-6), rms_norm(x, weight))


@pytest.mark.parametrize("case", OPTIMIZATION.cases(), ids=lambda case: case.name)
def test_no_bit_differs(case: Any) -> None:
    judged = judge(OPTIMIZATION, case, Place("cuda", "bfloat16"))
    assert (judged.passed, judged.unequal) == (True, 0), judged


@pytest.mark.parametrize("batch", [1, 8, 32, 64])
@pytest.mark.parametrize("drafts", [3, 7, 10, 15])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_a_graph_is_right_for_inputs_that_are_rewritten_in_place(batch: int, drafts: int, width: int) -> None:
    right, held = block(batch, drafts, width), block(batch, drafts, width)
    made: list[Any] = []
    graph = captured(lambda: made.append(norm_and_rotate(held.qkv, held.positions, held.norms)))
    assert nodes(graph) == 1
    for _ in range(20):
        held.qkv.copy_(right.qkv)
        held.positions.copy_(right.positions)
        for part in made[-1][:2]:
            part.fill_(float("nan"))
        graph.replay()
        for got, wanted in zip(made[-1], qk_norm_rope(right.qkv, right.positions, right.norms), strict=True):
            assert torch.equal(got, wanted)
        right.next()


def test_another_batch_does_not_compile_anew() -> None:
    def compiled() -> int:
        return len(kernels.norm_and_rotate_heads.device_caches[torch.cuda.current_device()][0])

    first = block(1, 7)
    norm_and_rotate(first.qkv, first.positions, first.norms)
    before = compiled()
    for batch in (2, 3, 16, 17, 64):
        other = block(batch, 7)
        norm_and_rotate(other.qkv, other.positions, other.norms)
    assert compiled() == before


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_layer_is_one_node_and_what_it_takes(batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    given = [block(batch, 7) for _ in range(LAYERS)]

    def of(call: Any) -> Any:
        return lambda: [call(one.qkv, one.positions, one.norms) for one in given]

    stock, fast = of(qk_norm_rope), of(norm_and_rotate)
    assert nodes(captured(fast)) == LAYERS
    before, after = (taken / LAYERS for taken in microseconds(stock, fast))
    with capsys.disabled():
        print(
            f"\nqk-norm-rope, batch {batch}, K=7, a layer: {nodes(captured(stock)) / LAYERS:.0f} nodes, {before:.1f} us"
            f" -> 1 node, {after:.2f} us (to reach at batch 1: {FLOOR_US} + {ABOVE_US})"
        )


@pytest.mark.parametrize(
    "ids", [["qk-norm-rope"], ["context-norm-rope"], ["masked-scatter"], BITWISE_TOGETHER], ids="+".join
)
@pytest.mark.parametrize(("batch", "drafts"), [(1, 3), (8, 7), (32, 10), (8, 15)])
@pytest.mark.parametrize("states", [(), (1,)], ids=["attention", "states"])
def test_drafts_in_the_cycle_are_the_same_bits(
    ids: list[str], batch: int, drafts: int, states: tuple[int, ...]
) -> None:
    shape = DFlashShape(layers=2, heads=8, kv_heads=2, head_dim=64, intermediate=128, windows=(None, 30), sinks=True)
    geometry = Geometry("heads of 64", hidden=128, heads=4, kv_heads=2, head_dim=32, state_layers=states, dflash=shape)
    settings = Settings(geometry, batch=batch, draft_length=drafts, context=160, device="cuda", dtype="bfloat16")
    prompts, logs, tokens = random_prompts(settings, batch + 2, 100), [], []
    for chosen in ([], ids):
        optimized.apply(chosen)
        logs.append(DraftLog())
        on = generate(Cycle(settings, None, logs[-1]), prompts, 40)
        tokens.append(on.tokens)
    for said in optimized.counts():
        assert (said["hits"], said["fallbacks"], said["errors"]) == (on.cycles, 0, 0)
    assert tokens[0] == tokens[1]
    assert compare_drafts(*logs).agrees()


def test_single_precision_is_left_to_stock_and_said() -> None:
    settings = replace(Settings(batch=2, context=64, draft_length=3), device="cuda", dtype="float32")
    optimized.apply([OPTIMIZATION.id])
    on = generate(Cycle(settings), random_prompts(settings, 2, 20), 10)
    (said,) = optimized.counts()
    assert said["reasons"] == {"its order of arithmetic is not proven in float32": on.cycles}
