"""The model of a DFlash drafter of a vLLM on the CPU: python drafter_model_of_this_version.py VERSION ITS-SOURCES.

Model, attention, norms, rotary embedding, attention backend and graph manager are vLLM's own classes, with what they
need of a server filled in by hand. Two operations that vLLM has compiled are written out in the order of its CUDA
kernels, so that results can be compared bit by bit. Prints what happened in each situation as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VERSION, TREE = sys.argv[1:]
sys.path.insert(0, TREE)
sys.path.append(str(Path(__file__).parents[1]))

import torch  # noqa: E402
from drafter_models import SMALL, Drafter, Own, of_flash  # noqa: E402
from stand_ins import Graph, planted  # noqa: E402
from torch import Tensor  # noqa: E402
from vllm.config.compilation import CUDAGraphMode  # noqa: E402
from vllm.model_executor.layers.layernorm import RMSNorm  # noqa: E402
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding  # noqa: E402
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Attention, DFlashQwen3Model  # noqa: E402
from vllm.model_executor.models.qwen3_dspark import Qwen3DSparkModel  # noqa: E402
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator  # noqa: E402

import optimized  # noqa: E402
from optimized import captured  # noqa: E402
from optimized.context_norm_rope import vllm as context_switch  # noqa: E402
from optimized.head_order import rms_norm_in_pairs  # noqa: E402
from optimized.qk_norm_rope import vllm as heads_switch  # noqa: E402
from optimized.reference_cycle.geometry import Rope  # noqa: E402
from optimized.reference_cycle.rope import rotate_halves  # noqa: E402

CONTEXT, HEADS_ID = "context-norm-rope", "qk-norm-rope"
DRAFTS, LAYERS = 2, SMALL.layers


def written_out() -> torch.library.Library:
    """vLLM's norm, of weights [n] or one for each first index, and its rotation by halves; both kept by the caller."""

    def rms_norm(out: Tensor, x: Tensor, weight: Tensor | None, epsilon: float) -> None:
        assert weight is not None
        by_group = weight if weight.ndim == 1 else weight.view(len(weight), *(1,) * (x.ndim - 2), -1)
        out.copy_(rms_norm_in_pairs(x, by_group, epsilon))

    def rotary(positions: Tensor, query: Tensor, key: Tensor | None, size: int, table: Tensor, neox: bool) -> None:
        assert neox
        for part in (query, key):
            if part is not None:
                heads = part.unflatten(-1, (-1, size))
                heads.copy_(rotate_halves(heads, positions, table.float()))

    library = torch.library.Library("_C", "FRAGMENT")
    library.define("rms_norm(Tensor! out, Tensor input, Tensor? weight, float epsilon) -> ()")
    library.define(
        "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int size, Tensor table, bool neox) -> ()"
    )
    library.impl("rms_norm", rms_norm, "CPU")
    library.impl("rotary_embedding", rotary, "CPU")
    return library


def counted(name: str) -> dict[str, Any]:
    """What that switch has counted so far."""
    return next(one for one in optimized.counts() if one["id"] == name)


def contexts() -> dict[str, Any]:
    """Stock, on, and off again, in every form and dtype: whether the caches are equal in every bit."""
    found: dict[str, Any] = {}
    for name in ("float32", "float16", "bfloat16"):
        for how in ("one tensor", "groups"):
            made = [Drafter(getattr(torch, name)) for _ in range(3)]
            before = made[0].caches()
            made[0].place(made[0].mapped(how))
            optimized.apply([CONTEXT], VERSION)
            made[1].place(made[1].mapped(how))
            counts, held = counted(CONTEXT), optimized.allocated(CONTEXT)
            optimized.revert([CONTEXT])
            made[2].place(made[2].mapped(how))
            stock = made[0].caches()
            equal = [bool(torch.equal(one.caches(), stock)) for one in made[1:]]
            written = int((stock != before).sum())
            found[f"{name}, {how}"] = {"equal": equal, "written": written, "counts": counts, "bytes": held}
    return found


def backends() -> dict[str, Any]:
    """FlashAttention's caches hold what Triton's do, and a backend of another kind is given what stock gives it."""
    triton, flash = Drafter(), Drafter(impl=of_flash)
    triton.place(triton.slots)
    stock, own = Drafter(impl=Own), Drafter(impl=Own)
    stock.place(stock.mapped("groups"))
    optimized.apply([CONTEXT], VERSION)
    flash.place(flash.slots)
    own.place(own.mapped("groups"))
    counts = counted(CONTEXT)
    optimized.revert([CONTEXT])
    stored = [[part for layer in one.model.layers for part in layer.self_attn.attn.impl.stored] for one in (stock, own)]
    same = [bool(torch.equal(one, other)) for one, other in zip(*stored, strict=True)]
    return {
        "flash": bool(torch.equal(flash.caches(), triton.caches())),
        "own": same,
        "untouched": bool(torch.equal(own.caches(), Drafter(impl=Own).caches())),
        "counts": counts,
    }


def dummies() -> dict[str, Any]:
    """Runs that store nothing: neither counted nor stored."""
    made = Drafter()
    before = made.caches()
    optimized.apply([CONTEXT], VERSION)
    made.place(None)
    made.place([None] * LAYERS)
    counts = counted(CONTEXT)
    optimized.revert([CONTEXT])
    return {"untouched": bool(torch.equal(made.caches(), before)), "counts": counts}


def refusals() -> dict[str, str | None]:
    """Why a model is left alone, by what is unlike the one that is taken."""

    class Gated(DFlashQwen3Model):  # type: ignore[misc]
        def _normalize_context_k(self, all_k: Tensor) -> Tensor:
            return all_k

    made = {
        name: Drafter().model for name in ("nothing", "quantized", "scaled", "neighbours", "part", "dtype", "table")
    }
    made["own method"] = Drafter(kind=Gated).model
    made["dspark"] = Drafter(kind=Qwen3DSparkModel).model
    made["quantized"]._fused_kv_weight = None
    made["scaled"].layers[0].self_attn.v_scale = 2.0
    made["neighbours"]._rope_is_neox = False
    half = Drafter(rope=Rope(theta=1e4, partial=0.5))
    made["part"] = half.model
    made["dtype"]._k_norm_weights = made["dtype"]._k_norm_weights.half()
    made["table"].layers[1].self_attn.rotary_emb.cos_sin_cache = torch.zeros(SMALL.longest, SMALL.head_dim)
    return {name: context_switch.why_not_in_vllm(model) for name, model in made.items()}


def left_alone() -> dict[str, Any]:
    """A model that is refused, slots that are not one a token, and a launch that fails: the original, and why."""
    found: dict[str, Any] = {}
    launch = context_switch.to_pages
    for name in ("refused", "too few slots", "failed"):
        right, made = Drafter(), Drafter()
        slots = made.slots[:-1] if name == "too few slots" else made.slots
        if name == "refused":
            right.model.layers[0].self_attn.v_scale = made.model.layers[0].self_attn.v_scale = 2.0
        right.place(slots)
        optimized.apply([CONTEXT], VERSION)
        context_switch.to_pages = planted if name == "failed" else launch
        made.place(slots)
        made.place(slots)
        context_switch.to_pages = launch
        found[name] = {"equal": bool(torch.equal(made.caches(), right.caches())), "counts": counted(CONTEXT)}
        optimized.revert([CONTEXT])
    return found


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether all are equal in every bit."""
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def blocks() -> dict[str, Any]:
    """Stock, on, and off again, in every dtype, and with values that are scaled where this version scales them."""
    found: dict[str, Any] = {}
    for name in ("float32", "float16", "bfloat16", "scaled"):
        made = Drafter(getattr(torch, name, torch.float32))
        if name == "scaled":
            made.model.layers[0].self_attn.v_scale = 2.0 if "v_scale" in FORWARD.co_names else None
        stock = made.attended()
        optimized.apply([HEADS_ID], VERSION)
        on, counts = made.attended(), counted(HEADS_ID)
        optimized.revert([HEADS_ID])
        found[name] = {"equal": [same(on, stock), same(made.attended(), stock)], "counts": counts}
        found[name]["moved"] = not torch.equal(
            stock[1], made.model.layers[0].self_attn.qkv_proj(made.states)[0][:, :128]
        )
    return found


FORWARD = DFlashQwen3Attention.forward.__code__


def refused_blocks() -> dict[str, str | None]:
    """Why a layer is left alone, by what is unlike the one that is taken; the same where it is called."""

    class Another(RMSNorm):  # type: ignore[misc]
        pass

    class Turned(RotaryEmbedding):  # type: ignore[misc]
        def forward_cuda(self, *arguments: Any) -> Any:
            return super().forward_cuda(*arguments)

    names = ("nothing", "norm", "override", "epsilon", "rotary", "native", "part", "neighbours", "table dtype")
    made = {name: Drafter() for name in (*names, "positions", "dtype")}
    layers = {name: one.model.layers[0].self_attn for name, one in made.items()}
    layers["norm"].q_norm.__class__ = Another
    layers["override"].k_norm.variance_size_override = 16
    layers["epsilon"].k_norm.variance_epsilon = 1e-5
    layers["rotary"].rotary_emb.__class__ = Turned
    layers["native"].rotary_emb._forward_method = layers["native"].rotary_emb.forward_native
    layers["part"].rotary_emb.rotary_dim = 16
    layers["neighbours"].rotary_emb.is_neox_style = False
    layers["table dtype"].rotary_emb.cos_sin_cache = layers["table dtype"].rotary_emb.cos_sin_cache.half()
    made["positions"].positions = made["positions"].positions.expand(3, -1)
    layers["dtype"].q_norm.weight.data = layers["dtype"].q_norm.weight.data.double()
    found: dict[str, str | None] = {}
    for name, one in made.items():
        reason = heads_switch.why_not_in_vllm(layers[name])
        found[name] = reason or heads_switch._made(layers[name], one.positions, one.states)[0]
    return found


def failed_block() -> dict[str, Any]:
    """The kernel fails at the first of two calls."""
    made, kernel = Drafter(), heads_switch.norm_and_rotate
    stock = made.attended()
    optimized.apply([HEADS_ID], VERSION)
    heads_switch.norm_and_rotate = planted
    first = made.attended()
    heads_switch.norm_and_rotate = kernel
    found = {"equal": [same(first, stock), same(made.attended(), stock)], "counts": counted(HEADS_ID)}
    optimized.revert([HEADS_ID])
    return found


def compiled_block() -> dict[str, Any]:
    """torch.compile traces the layer, whole, as if there were no switch."""
    made = Drafter()
    layer = made.model.layers[0].self_attn
    layer.attn, layer.qkv_proj.quant_method = (lambda query, key, value: query + 0 * key.sum()), None

    def block(positions: Tensor, states: Tensor) -> Tensor:
        result: Tensor = layer(positions, states)
        return result

    stock = block(made.positions, made.states)
    optimized.apply([HEADS_ID], VERSION)
    traced = torch.compile(block, backend="eager", fullgraph=True)(made.positions, made.states)
    found = {"equal": bool(torch.equal(traced, stock)), "counts": counted(HEADS_ID)}
    optimized.revert([HEADS_ID])
    return found


def replayed_blocks(compiled: bool) -> dict[str, Any]:
    """A drafter's graphs: captured with the kernel, with one layer's failing, and one unseen; all off at the end."""
    made, graphs = Drafter(), manager((1, 2, 3))
    speculator = drafting(SimpleNamespace(model=SimpleNamespace(do_not_compile=not compiled)), None)
    speculator.vllm_config = speculator.device = None
    kept_class = DFlashSpeculator.init_cudagraph_manager.__globals__["DFlashCudaGraphManager"]
    DFlashSpeculator.init_cudagraph_manager.__globals__["DFlashCudaGraphManager"] = lambda *_, **__: graphs
    optimized.apply([HEADS_ID], VERSION)
    speculator.attn_cg_support = SimpleNamespace(min_cg_support=SimpleNamespace(value=3), min_cg_attn_backend="")
    speculator.num_query_per_req = DRAFTS + 1
    speculator.init_cudagraph_manager(CUDAGraphMode.FULL)
    DFlashSpeculator.init_cudagraph_manager.__globals__["DFlashCudaGraphManager"] = kept_class
    captured.capturing = lambda on: True
    if not compiled:
        made.states, made.positions = made.states[:3], made.positions[:3]
        [made.attended(layer) for layer in range(LAYERS)]
    captured.capturing = CAPTURING
    at_capture = counted(HEADS_ID)["hits"]
    one, two, _ = graphs.graphs
    for desc in (one, one, two):
        graphs.run_fullgraph(desc)
    said = counted(HEADS_ID)
    optimized.revert([HEADS_ID])
    graphs.run_fullgraph(one)
    return {"at capture": at_capture, "counts": said}


def manager(sizes: tuple[int, ...]) -> Any:
    """vLLM's own manager of graphs for so many requests each."""
    made: Any = object.__new__(DFlashCudaGraphManager)
    queries = DRAFTS + 1
    made.graphs = {BatchExecutionDescriptor(CUDAGraphMode.FULL, n * queries, n, queries): Graph() for n in sizes}
    return made


def drafting(model: Any, graphs: Any) -> Any:
    """A speculator, as far as it makes contexts."""
    made: Any = object.__new__(DFlashSpeculator)
    made.model, made.query_cudagraph_manager = model, graphs
    made.num_speculative_steps, made.max_num_tokens = DRAFTS, SMALL.tokens
    return made


def replays() -> dict[str, Any]:
    """Graphs that hold the context: captured with it, one of them where its launch failed, and one unseen."""
    made, graphs = Drafter(), manager((1, 2, 3))
    speculator = drafting(made.model, graphs)
    speculator._layer_group_idx, speculator._context_slot_mappings = [0] * LAYERS, made.slots.unsqueeze(0)
    speculator.hidden_states, speculator.context_positions = made.states, made.positions
    optimized.apply([CONTEXT], VERSION)
    speculator._precompute_context_kv(0, 3)
    warm = counted(CONTEXT)["hits"]
    for module in (captured, context_switch):
        module.capturing = lambda on: True
    speculator._precompute_context_kv(0, 3)
    launch, context_switch.to_pages = context_switch.to_pages, planted
    speculator._precompute_context_kv(0, 6)
    context_switch.to_pages = launch
    for module in (captured, context_switch):
        module.capturing = CAPTURING
    at_capture = counted(CONTEXT)["hits"] - warm
    one, two, _ = graphs.graphs
    for desc in (one, one, two):
        graphs.run_fullgraph(desc)
    said = counted(CONTEXT)
    optimized.revert([CONTEXT])
    graphs.run_fullgraph(one)
    return {"warm": warm, "at capture": at_capture, "counts": said}


CAPTURING = captured.capturing


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    kept = written_out()
    facts: dict[str, Any] = {"contexts": contexts(), "backends": backends(), "dummies": dummies()}
    facts |= {"refusals": refusals(), "left alone": left_alone()}
    facts |= {"blocks": blocks(), "refused blocks": refused_blocks(), "failed block": failed_block()}
    facts |= {"compiled block": compiled_block(), "replayed blocks": [replayed_blocks(one) for one in (False, True)]}
    if hasattr(DFlashSpeculator, "_precompute_context_kv"):
        facts["replays"] = replays()
    print(json.dumps(facts))
