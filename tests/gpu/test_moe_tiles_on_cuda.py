"""The tabled tiles (moe-tiles) on a GPU: vLLM's kernel against float64, in CUDA graphs, and in vLLM's own experts."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
pytest.importorskip("vllm")

import vllm  # noqa: E402

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.gate import public  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.moe_tiles.reference import Layer, exact  # noqa: E402
from optimized.moe_tiles.tiles import Experts, Tile, tables  # noqa: E402
from optimized.moe_tiles.twins import NOT_TWICE  # noqa: E402
from optimized.moe_tiles.vllm import MoeTiles, by_vllm, choose, name_of  # noqa: E402

ID = "moe-tiles"
ITEM = optimized.discover()[ID]
GPU = torch.device("cuda")
ROWS = [(shape, tokens) for shape, rows in tables().items() for tokens in rows]
CLOSE = TOLERANCES["bfloat16"]
PLACED = [pytest.param(case, id=case.name) for case in ITEM.cases()]


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


class Work:
    """One layer of a table's shape at so many tokens."""

    def __init__(self, shape: Experts, tokens: int) -> None:
        random, dtype = torch.Generator("cuda").manual_seed(2), getattr(torch, shape.dtype)

        def draw(*size: int) -> Any:
            return torch.randn(*size, device=GPU, dtype=dtype, generator=random)

        self.rows = draw(tokens, shape.hidden)
        up = draw(shape.experts, shape.intermediate, shape.hidden).mul_(shape.hidden**-0.5)
        down = draw(shape.experts, shape.hidden, shape.intermediate).mul_(shape.intermediate**-0.5)
        self.layer = Layer(up, down)
        asked = [torch.randperm(shape.experts, device=GPU, generator=random)[: shape.top_k] for _ in range(tokens)]
        self.ids = torch.stack(asked).to(torch.int32)
        self.weights = torch.rand(tokens, shape.top_k, device=GPU, generator=random)

    def by(self, tile: Tile | None) -> Any:
        return by_vllm(self.rows, self.layer.up, self.layer.down, self.weights, self.ids, tile)

    def outside(self, got: Any) -> int:
        """How many elements are further from float64 than bfloat16 allows."""
        wanted = exact(self.rows, self.layer, self.weights, self.ids)
        return int(((got.double() - wanted).abs() > CLOSE * (1 + wanted.abs())).sum())


@pytest.mark.parametrize("case", PLACED)
def test_every_case_by_vllms_own_kernel(case: Any) -> None:
    judged = judge(ITEM, case, Place("cuda", "bfloat16"))
    assert judged.passed, judged


@pytest.mark.parametrize(("shape", "tokens"), ROWS)
def test_a_tile_at_its_own_shape_is_as_near_to_float64_as_vllms_own(shape: Experts, tokens: int) -> None:
    work = Work(shape, tokens)
    tile = tables()[shape][tokens]
    assert work.outside(work.by(None)) == work.outside(work.by(tile)) == 0
    work.ids = (work.ids + 1) % shape.experts
    others = work.by(tile)
    work.ids = (work.ids - 1) % shape.experts
    assert work.outside(others) > 0


@pytest.mark.parametrize(("shape", "tokens"), ROWS)
def test_a_graph_gives_what_the_call_gives(shape: Experts, tokens: int) -> None:
    work, tile = Work(shape, tokens), tables()[shape][tokens]
    called = work.by(tile)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work.by(tile)
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, called)


def experts_of(work: Work) -> tuple[Any, Any]:
    """vLLM's experts without the layer that they belong to, and their call."""
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

    made = object.__new__(TritonExperts)
    made.quant_config, made.quantization_emulation = FUSED_MOE_UNQUANTIZED_CONFIG, False
    made.gemm1_alpha, made.gemm1_beta, made.gemm1_clamp_limit = 1.0, 0.0, None
    made.activation_config = SimpleNamespace(clamp_limit=None, alpha=1.0, beta=0.0)
    out = torch.empty_like(work.rows)
    room = torch.empty(2, max(work.layer.up.shape[1:]) * work.ids.numel(), device=GPU, dtype=out.dtype)

    def call() -> Any:
        made.apply(
            output=out,
            hidden_states=work.rows,
            w1=work.layer.up,
            w2=work.layer.down,
            topk_weights=work.weights,
            topk_ids=work.ids,
            activation=MoEActivation.RELU2_NO_MUL,
            global_num_experts=len(work.layer.up),
            expert_map=None,
            a1q_scale=None,
            a2_scale=None,
            workspace13=room[0],
            workspace2=room[1],
            expert_tokens_meta=None,
            apply_router_weight_on_input=False,
        )
        return out.clone()

    return made, call


@pytest.mark.parametrize(("shape", "tokens"), ROWS)
def test_vllms_experts_take_the_tile_and_a_graph_of_somebodys_own_does_not(shape: Experts, tokens: int) -> None:
    if name_of(GPU) != shape.device:
        pytest.skip(f"no tile is known for {name_of(GPU)}")
    work = Work(shape, tokens)
    made, call = experts_of(work)
    assert choose(made, work.rows, work.layer.up, work.layer.down, work.ids, tables()) == tables()[shape][tokens]
    stock = call()
    optimized.apply([ID], public(vllm.__version__))
    assert work.outside(call()) == 0
    (said,) = optimized.counts()
    assert (said["hits"], said["fallbacks"], said["errors"]) == (1, 0, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    graph.replay()
    assert torch.equal(captured, stock)
    (said,) = optimized.counts()
    assert said["reasons"] == {NOT_TWICE: 1}
    optimized.revert()
    assert torch.equal(call(), stock)


def test_the_name_of_the_gpu_is_pytorchs() -> None:
    assert name_of(GPU) == torch.cuda.get_device_name()
    assert MoeTiles().allocated() == 0
