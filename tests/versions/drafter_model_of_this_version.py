"""The model of a DFlash drafter of a vLLM on the CPU: python drafter_model_of_this_version.py VERSION ITS-SOURCES.

Model, attention, norms, rotary embedding, attention backend and graph manager are vLLM's own classes, with what they
need of a server filled in by hand. Two operations that vLLM has compiled are written out in the order of its CUDA
kernels, so that results can be compared bit by bit. Prints what happened in each situation as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

VERSION, TREE = sys.argv[1:]
sys.path.insert(0, TREE)

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from vllm import ir  # noqa: E402
from vllm.config.compilation import CUDAGraphMode  # noqa: E402
from vllm.kernels import vllm_c  # noqa: E402, F401
from vllm.model_executor.layers.layernorm import RMSNorm  # noqa: E402
from vllm.model_executor.layers.linear import UnquantizedLinearMethod  # noqa: E402
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding  # noqa: E402
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Attention, DFlashQwen3Model  # noqa: E402
from vllm.model_executor.models.qwen3_dspark import Qwen3DSparkModel  # noqa: E402
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl  # noqa: E402
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl  # noqa: E402
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator  # noqa: E402

import optimized  # noqa: E402
from optimized import captured  # noqa: E402
from optimized.context_norm_rope import vllm as context_switch  # noqa: E402
from optimized.head_order import rms_norm_in_pairs  # noqa: E402
from optimized.qk_norm_rope import vllm as heads_switch  # noqa: E402
from optimized.reference_cycle.geometry import Rope  # noqa: E402
from optimized.reference_cycle.rope import rope_table, rotate_halves  # noqa: E402

CONTEXT, HEADS_ID = "context-norm-rope", "qk-norm-rope"
LAYERS, HEADS, KEY_HEADS, HEAD_DIM, HIDDEN = 3, 4, 2, 32, 64
PAGE, PAGES, TOKENS, LONGEST, DRAFTS, MOST = 4, 8, 6, 200, 2, 4
Mapping = Tensor | list[Tensor | None] | None


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


class Own:
    """A backend of another kind, whose cache is a list of what it was given."""

    def __init__(self) -> None:
        self.stored: list[Tensor] = []

    def do_kv_cache_update(self, layer: Any, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        self.stored += [key.clone(), value.clone(), slots.clone()]


class Attend:
    """The place where a layer attends, which says what it was given."""

    def __init__(self, impl: Any, cache: Tensor) -> None:
        self.impl, self.kv_cache = impl, cache
        self._k_scale = self._v_scale = torch.ones(1)
        self.given: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.given = [part.clone() for part in (query, key, value)]
        return query * 1.0


def bare(kind: type, **attributes: Any) -> Any:
    """A module of that class without its own constructor, which would need a server."""
    made = object.__new__(kind)
    nn.Module.__init__(made)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


class Drafter:
    """A drafter's model of random weights, with caches of random numbers."""

    def __init__(self, dtype: torch.dtype = torch.float32, kind: type = DFlashQwen3Model, **changes: Any) -> None:
        self.dtype, self.random = dtype, torch.Generator().manual_seed(3)
        self.impl: Callable[[], Any] = changes.pop("impl", of_triton)
        table = changes.pop("table", rope_table(Rope(theta=1e4), HEAD_DIM, LONGEST, "cpu")).to(dtype)
        layers = [SimpleNamespace(self_attn=self._attention(table)) for _ in range(LAYERS)]
        self.model = bare(kind, layers=layers, hidden_norm=self._norm(HIDDEN))
        self.model._build_fused_kv_buffers()
        self.states = self._draw(TOKENS, HIDDEN)
        self.positions = torch.randint(LONGEST, (TOKENS,), generator=self.random)
        self.slots = torch.randperm(PAGE * PAGES, generator=self.random)[:TOKENS]

    def place(self, mapping: Mapping) -> None:
        """One context."""
        self.model.precompute_and_store_context_kv(self.states, self.positions, mapping)

    def caches(self) -> Tensor:
        """All layers'."""
        return torch.stack([layer.self_attn.attn.kv_cache for layer in self.model.layers])

    def _attention(self, table: Tensor) -> Any:
        width = (HEADS + 2 * KEY_HEADS) * HEAD_DIM
        projection = bare(nn.Module, weight=self._weight(width, HIDDEN), bias=None)
        projection.quant_method = UnquantizedLinearMethod()
        projection.forward = lambda states: (nn.functional.linear(states, projection.weight), None)
        rotary = bare(RotaryEmbedding, head_size=HEAD_DIM, rotary_dim=HEAD_DIM, is_neox_style=True)
        rotary.use_flashinfer = rotary.use_aiter = False
        rotary.register_buffer("cos_sin_cache", table)
        rotary._forward_method = rotary.forward_cuda
        made = bare(DFlashQwen3Attention, qkv_proj=projection, q_norm=self._norm(), k_norm=self._norm())
        made.rotary_emb, made.head_dim, made.v_scale = rotary, HEAD_DIM, None
        made.num_heads, made.num_kv_heads = HEADS, KEY_HEADS
        made.q_size, made.kv_size = HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM
        made.attn = Attend(self.impl(), self._draw(PAGES, PAGE, KEY_HEADS, 2 * HEAD_DIM).transpose(1, 2))
        made.o_proj = lambda attended: (attended, None)
        return made

    def _norm(self, width: int = HEAD_DIM) -> Any:
        made = bare(RMSNorm, weight=nn.Parameter(1 + 0.1 * self._draw(width), requires_grad=False))
        made.variance_epsilon, made.variance_size_override, made.has_weight = 1e-6, None, True
        # What RMSNorm calls on a GPU.
        compiled = ir.ops.rms_norm.impls["vllm_c"].impl_fn
        made._forward_method = lambda x: compiled(x, made.weight.data, made.variance_epsilon)
        return made

    def _weight(self, *size: int) -> nn.Parameter:
        return nn.Parameter(self._draw(*size) * size[-1] ** -0.5, requires_grad=False)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random).to(self.dtype)


def of_triton() -> Any:
    """The implementation of vLLM's Triton backend."""
    return TritonAttentionImpl(HEADS, HEAD_DIM, HEAD_DIM**-0.5, KEY_HEADS, None, None, "auto")


def of_flash() -> Any:
    """The implementation of its FlashAttention backend, which fills its caches as the other does, but on a GPU only."""
    return object.__new__(FlashAttentionImpl)


def counted(name: str) -> dict[str, Any]:
    """What that switch has counted so far."""
    return next(one for one in optimized.counts() if one["id"] == name)


def mapped(drafter: Drafter, how: str) -> Mapping:
    """Slots in one of the forms in which vLLM gives them."""
    if how == "one tensor":
        return drafter.slots
    groups = torch.stack([drafter.slots, drafter.slots.flip(0)])
    groups[:, 1] = -1
    return [groups[layer % 2] for layer in range(LAYERS)]


def contexts() -> dict[str, Any]:
    """Stock, on, and off again, in every form and dtype: whether the caches are equal in every bit."""
    found: dict[str, Any] = {}
    for name in ("float32", "float16", "bfloat16"):
        for how in ("one tensor", "groups"):
            made = [Drafter(getattr(torch, name)) for _ in range(3)]
            before = made[0].caches()
            made[0].place(mapped(made[0], how))
            optimized.apply([CONTEXT], VERSION)
            made[1].place(mapped(made[1], how))
            counts, held = counted(CONTEXT), optimized.allocated(CONTEXT)
            optimized.revert([CONTEXT])
            made[2].place(mapped(made[2], how))
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
    stock.place(mapped(stock, "groups"))
    optimized.apply([CONTEXT], VERSION)
    flash.place(flash.slots)
    own.place(mapped(own, "groups"))
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
    half = Drafter(table=rope_table(Rope(theta=1e4, partial=0.5), HEAD_DIM, LONGEST, "cpu"))
    made["part"] = half.model
    made["dtype"]._k_norm_weights = made["dtype"]._k_norm_weights.half()
    made["table"].layers[1].self_attn.rotary_emb.cos_sin_cache = torch.zeros(LONGEST, HEAD_DIM)
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
        context_switch.to_pages = _planted if name == "failed" else launch
        made.place(slots)
        made.place(slots)
        context_switch.to_pages = launch
        found[name] = {"equal": bool(torch.equal(made.caches(), right.caches())), "counts": counted(CONTEXT)}
        optimized.revert([CONTEXT])
    return found


def attended(drafter: Drafter, layer: int = 0) -> list[Tensor]:
    """What a layer of the block gives, and what it attends by."""
    attention = drafter.model.layers[layer].self_attn
    return [attention(drafter.positions, drafter.states), *attention.attn.given]


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
        stock = attended(made)
        optimized.apply([HEADS_ID], VERSION)
        on, counts = attended(made), counted(HEADS_ID)
        optimized.revert([HEADS_ID])
        found[name] = {"equal": [same(on, stock), same(attended(made), stock)], "counts": counts}
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
    stock = attended(made)
    optimized.apply([HEADS_ID], VERSION)
    heads_switch.norm_and_rotate = _planted
    first = attended(made)
    heads_switch.norm_and_rotate = kernel
    found = {"equal": [same(first, stock), same(attended(made), stock)], "counts": counted(HEADS_ID)}
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
        [attended(made, layer) for layer in range(LAYERS)]
    captured.capturing = CAPTURING
    at_capture = counted(HEADS_ID)["hits"]
    one, two, _ = graphs.graphs
    for desc in (one, one, two):
        graphs.run_fullgraph(desc)
    said = counted(HEADS_ID)
    optimized.revert([HEADS_ID])
    graphs.run_fullgraph(one)
    return {"at capture": at_capture, "counts": said}


def _planted(*_: Any) -> None:
    raise RuntimeError("planted")


class Graph:
    """What is replayed, in place of a GPU's."""

    def replay(self) -> None:
        pass


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
    made.num_speculative_steps, made.max_num_tokens = DRAFTS, TOKENS
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
    launch, context_switch.to_pages = context_switch.to_pages, _planted
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
