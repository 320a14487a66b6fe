"""The model of vLLM's DFlash drafter with what it needs of a server filled in by hand; its classes are vLLM's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from stand_ins import bare
from torch import Tensor, nn
from vllm import ir
from vllm.kernels import vllm_c  # noqa: F401
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Attention, DFlashQwen3Model
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl

from optimized.reference_cycle.geometry import Rope
from optimized.reference_cycle.rope import rope_table

Mapping = Tensor | list[Tensor | None] | None


@dataclass(frozen=True)
class Size:
    """Of a drafter, and of one context for it; the caches have `pages` pages of so many slots."""

    layers: int = 3
    heads: int = 4
    key_heads: int = 2
    head_dim: int = 32
    hidden: int = 64
    tokens: int = 6
    page: int = 4
    pages: int = 8
    longest: int = 200


SMALL = Size()


def of_triton(size: Size) -> Any:
    """The implementation of vLLM's Triton backend."""
    return TritonAttentionImpl(size.heads, size.head_dim, size.head_dim**-0.5, size.key_heads, None, None, "auto")


def of_flash(size: Size) -> Any:
    """The implementation of its FlashAttention backend, as far as it stores; that needs a GPU."""
    made = object.__new__(FlashAttentionImpl)
    made.head_size, made.attn_type, made.kv_cache_dtype = size.head_dim, "decoder", "auto"
    return made


class Own:
    """A backend of another kind, whose cache is a list of what it was given."""

    def __init__(self, size: Size) -> None:
        self.stored: list[Tensor] = []

    def do_kv_cache_update(self, layer: Any, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        self.stored += [key.clone(), value.clone(), slots.clone()]


class Attend:
    """The place where a layer attends, which says what it was given."""

    def __init__(self, impl: Any, cache: Tensor) -> None:
        self.impl, self.kv_cache = impl, cache
        self._k_scale = self._v_scale = torch.ones(1, device=cache.device)
        self.given: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.given = [query, key, value]
        return query


class Drafter:
    """A drafter's model of random weights, with caches of random numbers."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        size: Size = SMALL,
        device: str = "cpu",
        kind: type = DFlashQwen3Model,
        impl: Callable[[Size], Any] = of_triton,
        rope: Rope | None = None,
    ) -> None:
        self.dtype, self.size, self.device, self.impl = dtype, size, device, impl
        self.random = torch.Generator(device).manual_seed(3)
        table = rope_table(rope or Rope(theta=1e4), size.head_dim, size.longest, device).to(dtype)
        layers = [SimpleNamespace(self_attn=self._attention(table)) for _ in range(size.layers)]
        self.model = bare(kind, layers=layers, hidden_norm=self._norm(size.hidden))
        self.model._build_fused_kv_buffers()
        self.draw()

    def draw(self) -> None:
        """Another context."""
        size, where = self.size, {"generator": self.random, "device": self.device}
        self.states = self._draw(size.tokens, size.hidden)
        self.positions = torch.randint(size.longest, (size.tokens,), **where)
        self.slots = torch.randperm(size.page * size.pages, **where)[: size.tokens].contiguous()

    def mapped(self, how: str) -> Mapping:
        """Slots in one of the forms in which vLLM gives them."""
        if how == "one tensor":
            return self.slots
        groups = torch.stack([self.slots, self.slots.flip(0)])
        groups[:, -1] = -1
        return [groups[layer % 2] for layer in range(self.size.layers)]

    def place(self, mapping: Mapping) -> None:
        """One context."""
        self.model.precompute_and_store_context_kv(self.states, self.positions, mapping)

    def caches(self) -> Tensor:
        """All layers'."""
        return torch.stack([layer.self_attn.attn.kv_cache for layer in self.model.layers])

    def attended(self, layer: int = 0) -> list[Tensor]:
        """What a layer of the block gives, and what it attends by."""
        attention = self.model.layers[layer].self_attn
        return [part.clone() for part in (attention(self.positions, self.states), *attention.attn.given)]

    def _attention(self, table: Tensor) -> Any:
        size = self.size
        width = (size.heads + 2 * size.key_heads) * size.head_dim
        projection = bare(nn.Module, weight=self._weight(width, size.hidden), bias=None)
        projection.quant_method = UnquantizedLinearMethod()
        projection.forward = lambda states: (nn.functional.linear(states, projection.weight), None)
        rotary = bare(RotaryEmbedding, head_size=size.head_dim, rotary_dim=size.head_dim, is_neox_style=True)
        rotary.use_flashinfer = rotary.use_aiter = False
        rotary.register_buffer("cos_sin_cache", table)
        rotary._forward_method = rotary.forward_cuda
        made = bare(
            DFlashQwen3Attention,
            qkv_proj=projection,
            q_norm=self._norm(size.head_dim),
            k_norm=self._norm(size.head_dim),
        )
        made.rotary_emb, made.head_dim, made.v_scale = rotary, size.head_dim, None
        made.num_heads, made.num_kv_heads = size.heads, size.key_heads
        made.q_size, made.kv_size = size.heads * size.head_dim, size.key_heads * size.head_dim
        cache = self._draw(size.pages, size.page, size.key_heads, 2 * size.head_dim).transpose(1, 2)
        made.attn = Attend(self.impl(size), cache)
        made.o_proj = lambda attended: (attended, None)
        return made

    def _norm(self, width: int) -> Any:
        made = bare(RMSNorm, weight=nn.Parameter(1 + 0.1 * self._draw(width), requires_grad=False))
        made.variance_epsilon, made.variance_size_override, made.has_weight = 1e-6, None, True
        # What RMSNorm calls on a GPU.
        compiled = ir.ops.rms_norm.impls["vllm_c"].impl_fn
        made._forward_method = lambda x: compiled(x, made.weight.data, made.variance_epsilon)
        return made

    def _weight(self, *size: int) -> nn.Parameter:
        return nn.Parameter(self._draw(*size) * size[-1] ** -0.5, requires_grad=False)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random, device=self.device).to(self.dtype)
