"""masked-scatter's kernel on a GPU: every bit, in a graph whose inputs are rewritten, its nodes and time."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, microseconds, nodes  # noqa: E402

from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.masked_scatter import OPTIMIZATION, kernels  # noqa: E402
from optimized.masked_scatter.contest import contest  # noqa: E402
from optimized.masked_scatter.reference import Rows, Shape  # noqa: E402
from optimized.masked_scatter.storing import store  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402

FLOOR_US = 1.36


def rows(batch: int, drafts: int) -> Rows:
    shape = Shape(batch, drafts + 1, 4096, 400, (drafts + 1, 1, 2, 0), 30, strange=True)
    return Rows(shape, Place("cuda", "bfloat16"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("case", OPTIMIZATION.cases(), ids=lambda case: case.name)
def test_no_bit_differs(case: Any, dtype: str) -> None:
    judged = judge(OPTIMIZATION, case, Place("cuda", dtype))
    assert (judged.passed, judged.unequal) == (True, 0), judged


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("drafts", [3, 7, 15])
def test_a_graph_is_right_for_inputs_that_are_rewritten_in_place(batch: int, drafts: int) -> None:
    right, held = rows(batch, drafts), rows(batch, drafts)
    buffers = held.inputs()
    graph = captured(lambda: store(held.states, held.positions, held.counts, held.slots, held.kept))
    assert nodes(graph) == 1
    for _ in range(5):
        for name, buffer in buffers.items():
            buffer.copy_(right.inputs()[name])
        held.poison()
        graph.replay()
        wanted = right.reference()
        for name, value in held._results().items():
            assert torch.equal(value.nan_to_num(7.0), wanted[name].nan_to_num(7.0)), name
            assert torch.equal(value.isnan(), wanted[name].isnan()), name
        right.next()


def test_another_batch_does_not_compile_anew() -> None:
    def compiled() -> int:
        return len(kernels.multiply_and_store.device_caches[torch.cuda.current_device()][0])

    rows(2, 7).fast()
    before = compiled()
    for batch in (1, 3, 16, 64):
        rows(batch, 7).fast()
    assert compiled() == before


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_it_is_one_node_and_what_it_takes(batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    geometry = GEOMETRIES["qwen3-8b"].scaled(layers=6, vocab=1024)
    both = contest(Settings(geometry, batch=batch, context=512, device="cuda", dtype="bfloat16"))
    assert nodes(captured(both.fast)) == 1
    before, after = microseconds(both.stock, both.fast)
    with capsys.disabled():
        print(
            f"\nmasked-scatter, batch {batch}, K=7: {nodes(captured(both.stock))} nodes, {before:.1f} us"
            f" -> 1 node, {after:.2f} us (a node takes {FLOOR_US})"
        )
