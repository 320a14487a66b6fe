"""context-norm-rope's kernel on a GPU: every bit of the stock chain, graphs with inputs rewritten, nodes and time."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, microseconds, nodes  # noqa: E402

from optimized.cases import Place  # noqa: E402
from optimized.context_kv_cache.cache import Cache  # noqa: E402
from optimized.context_norm_rope import OPTIMIZATION, kernels  # noqa: E402
from optimized.context_norm_rope.placing import place, why_not  # noqa: E402
from optimized.context_norm_rope.reference import Context, Shape  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.reference_cycle import attention  # noqa: E402
from optimized.reference_cycle.attention import norm_layers, rms_norm  # noqa: E402
from optimized.reference_cycle.batch import Batch  # noqa: E402
from optimized.reference_cycle.dflash import DFlashDrafter  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from optimized.reference_cycle.target import Target  # noqa: E402

FLOOR_US, MOST_NODES = 1.36, 3
LAYERS = 5


def context(batch: int, drafts: int, width: int = 128, rounding: int = 1) -> Context:
    shape = Shape(batch, drafts + 1, LAYERS, 8, width, 600, (drafts + 1, 1, 2, 0), 30, rounding=rounding)
    return Context(shape, Place("cuda", "bfloat16"))


def given(problem: Context) -> tuple[Any, ...]:
    epsilon = problem.shape.epsilon
    return problem.raw, problem.positions, problem.norms, problem.table, problem.into, epsilon, problem.cells


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", OPTIMIZATION.cases(), ids=lambda case: case.name)
def test_no_bit_differs(case: Any, dtype: str) -> None:
    judged = judge(OPTIMIZATION, case, Place("cuda", dtype))
    assert (judged.passed, judged.unequal) == (True, 0), judged


@pytest.mark.parametrize("width", [64, 128, 256])
def test_a_stacked_norm_has_the_bits_of_one_a_layer(width: int) -> None:
    keys = torch.randn(64, LAYERS, 8, width, device="cuda", dtype=torch.bfloat16)
    norms = torch.randn(LAYERS, width, device="cuda", dtype=torch.bfloat16)
    apart = torch.stack([rms_norm(keys[:, layer], weight) for layer, weight in enumerate(norms)], dim=1)
    assert torch.equal(norm_layers(keys, norms, attention.EPSILON), apart)


@pytest.mark.parametrize("batch", [1, 8, 32, 64])
@pytest.mark.parametrize("drafts", [3, 7, 10, 15])
@pytest.mark.parametrize("rounding", [1, 2])
def test_a_graph_is_right_for_inputs_that_are_rewritten_in_place(batch: int, drafts: int, rounding: int) -> None:
    right, held = (context(batch, drafts, rounding=rounding) for _ in range(2))
    arguments = given(held)
    # The slots come expanded, as the cycle gives them.
    slots, columns = held.cells[0].contiguous()[:, :1].expand_as(held.cells[0]), held.cells[1].contiguous()
    graph = captured(lambda: place(*arguments[:-1], (slots, columns), rounding))
    assert nodes(graph) == 1
    for _ in range(10):
        held.raw.copy_(right.raw)
        held.positions.copy_(right.positions)
        slots[:, 0].copy_(right.cells[0][:, 0])
        columns.copy_(right.cells[1])
        held.cells = slots, columns
        held.poison()
        graph.replay()
        wanted = right.reference()
        for name, value in held._results().items():
            assert torch.equal(value, wanted[name]), name
        right.next()


def test_another_batch_does_not_compile_anew() -> None:
    def compiled() -> int:
        return len(kernels.norm_rotate_and_place.device_caches[torch.cuda.current_device()][0])

    place(*given(context(2, 7)))
    before = compiled()
    for batch in (3, 16, 17, 64):
        place(*given(context(batch, 7)))
    assert compiled() == before


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_the_chain_behind_the_projection_is_one_node_and_what_it_takes(
    batch: int, capsys: pytest.CaptureFixture[str]
) -> None:
    geometry = GEOMETRIES["qwen3-8b"].scaled(layers=6, vocab=1024)
    settings = Settings(geometry, batch=batch, context=512, device="cuda", dtype="bfloat16")
    drafter = DFlashDrafter(settings, Target(settings), Batch(settings))
    held = Cache.create(drafter.layers, batch + 1, drafter.keys.shape[2])
    rows, shape = settings.speculative + 1, geometry.dflash
    raw = torch.randn(batch, rows, shape.layers, 2, shape.kv_heads, shape.head_dim, device="cuda").bfloat16()
    columns = (100 + torch.arange(rows, device="cuda")).repeat(batch, 1)
    cells = torch.arange(batch, device="cuda").unsqueeze(1).expand_as(columns), columns
    arguments = raw, columns, held.norms, held.table, (held.keys, held.values), held.epsilon, cells
    assert why_not(*arguments) is None

    def stock() -> None:
        attention.place_context(*arguments)

    def fast() -> None:
        place(*arguments)

    assert nodes(captured(fast)) == 1
    before, after = microseconds(stock, fast)
    with capsys.disabled():
        print(
            f"\ncontext-norm-rope, batch {batch}, K=7, L={shape.layers}:"
            f" {nodes(captured(stock))} nodes, {before:.1f} us -> 1 node, {after:.2f} us"
            f" (to reach at batch 1: {MOST_NODES} nodes, {3 * FLOOR_US:.2f} us)"
        )
