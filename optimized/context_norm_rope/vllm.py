"""The launch in vLLM's DFlash and DSpark drafters: behind the projection of a context that all layers share.

Up to 0.30 vLLM makes the context's keys and values outside of graphs, from 0.31 on in the graph of runner V2's drafter,
which keeps what it was captured with. Where the layers' caches are those of vLLM's Triton or FlashAttention backend,
the launch fills them; elsewhere, and where they are quantized, it makes keys and values and the backend stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.captured import GraphCounts, capturing
from optimized.context_norm_rope.caching import Norms, Pages, apart, distances, to_pages, why_not, why_not_pages
from optimized.objections import first_objection
from optimized.optimization import Counts
from optimized.pinning import Judged
from spantrace.patching import Function

OWN = ("_project_context_kv", "_normalize_context_k", "_build_context_kv_buffers", "_build_fused_kv_buffers")
"""The model's methods that a subclass may have of its own."""
PAGED = ("triton_attn.TritonAttentionImpl", "flash_attn.FlashAttentionImpl")
"""The backends whose cache is known, by the end of their names."""
MOVED = "the caches lie elsewhere than before the capture"
_pages: WeakKeyDictionary[Any, dict[tuple[object, ...], Pages | None]] = WeakKeyDictionary()
"""By model where its caches lie, None where their backend must store; captured graphs read it, so it stays."""


def why_not_in_vllm(model: Any) -> str | None:
    """Why this drafter's contexts are left as they are; nothing is read from the GPU."""
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    changed = [name for name in OWN if getattr(type(model), name) is not getattr(DFlashQwen3Model, name)]
    if changed:
        return f"the drafter is a {type(model).__name__}, whose {changed[0]} is its own"
    weight, norms = getattr(model, "_fused_kv_weight", None), _norms(model)
    if weight is None:
        return "the projections are quantized"
    tables = {layer.self_attn.rotary_emb.cos_sin_cache.data_ptr() for layer in model.layers}
    objections = {
        "values are scaled": getattr(model.layers[0].self_attn, "v_scale", None) is not None,
        "neighbours rotate, not halves": not model._rope_is_neox,
        "the block is rotated by another table than the context": tables != {norms.table.data_ptr()},
        "the GPU is not NVIDIA's": torch.version.hip is not None,
    }
    reason = first_objection(objections)
    return reason or why_not(weight, model._head_dim, norms)


class ContextInOneLaunch:
    """The switch; a hit is a context that was made by the launch, by a call or by the replay of a graph."""

    def __init__(self) -> None:
        from optimized.context_norm_rope import OPTIMIZATION

        self.counts = Counts()
        self._judged = Judged(OPTIMIZATION)
        self._graphs = GraphCounts(self.counts)
        self._refused: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
        self._broken: str | None = None

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """What makes and stores a context, and, where graphs hold that, what calls it in the drafter."""
        return {
            "DFlashQwen3Model.precompute_and_store_context_kv": self._precompute,
            "DFlashSpeculator._precompute_context_kv": self._in_drafter,
        }

    def allocated(self) -> int:
        """Bytes of where the layers' caches lie."""
        return sum(pages.bases.nbytes for known in _pages.values() for pages in known.values() if pages)

    def close(self) -> None:
        """Count no more replays, and ask of each model anew."""
        self._graphs.close()
        self._refused.clear()

    def _precompute(self, original: Function) -> Function:
        @wraps(original)
        def precompute(
            model: Any,
            context_states: Tensor,
            context_positions: Tensor,
            context_slot_mapping: Tensor | Sequence[Tensor | None] | None = None,
        ) -> None:
            slots = _by_layer(model, context_slot_mapping)
            if slots is None:
                self._judge(context_states)
            else:
                reason = self._place(model, context_states, context_positions, slots)
                self._graphs.note(context_states, len(context_states), reason)
                if reason is None:
                    return
            original(model, context_states, context_positions, context_slot_mapping)

        return precompute

    def _judge(self, states: Tensor) -> None:
        """A dummy run stores nothing, and comes before a request does: the time to find out."""
        try:
            self._judged.why_not(capturing(states))
        except Exception as error:
            self.counts.failed(error)

    def _in_drafter(self, original: Function) -> Function:
        @wraps(original)
        def precompute(speculator: Any, *arguments: Any, **named: Any) -> Any:
            manager = getattr(speculator, "query_cudagraph_manager", None)
            self._graphs.follow(manager, lambda graph: speculator._num_graph_context_tokens(graph.num_reqs))
            return original(speculator, *arguments, **named)

        return precompute

    def _place(self, model: Any, states: Tensor, positions: Tensor, slots: list[Tensor]) -> str | None:
        """Make and store the context; why that was not done, and vLLM must."""
        if self._broken:
            return self._broken
        try:
            if (reason := self._why_not(model, states, slots)) is not None:
                return reason
            known, where = _pages.setdefault(model, {}), _where(model, slots)
            if where not in known:
                if capturing(states):
                    return MOVED
                known[where] = _known_pages(model, slots, states.dtype)
            _store(model, _project(model, states), positions, slots, known[where])
        except Exception as error:
            self.counts.failed(error)
            self._broken = "it failed before"
            return self._broken
        return None

    def _why_not(self, model: Any, states: Tensor, slots: list[Tensor]) -> str | None:
        """What holds of the model is asked once."""
        if not hasattr(model, "_num_attn_layers"):
            return "its weights have not been stacked yet"
        if (reason := self._judged.why_not(capturing(states))) is not None:
            return reason
        if model not in self._refused:
            self._refused[model] = why_not_in_vllm(model)
        if (reason := self._refused[model]) is not None:
            return reason
        if states.dtype != model._k_norm_weights.dtype:
            return "hidden states are of another dtype than the norms"
        return None if len(slots[0]) == len(states) else "there is not one slot a token"


def _where(model: Any, slots: list[Tensor]) -> tuple[object, ...]:
    """What a launch's target depends on."""
    caches = [attention.kv_cache for attention in model._attn_layers]
    return *(cache.data_ptr() for cache in caches), *distances(slots), caches[0].shape, caches[0].stride()


def _known_pages(model: Any, slots: list[Tensor], dtype: torch.dtype) -> Pages | None:
    """Where the layers' caches lie, if they are laid out as is known and hold numbers of that dtype."""
    kinds = {type(attention.impl) for attention in model._attn_layers}
    if not all(f"{kind.__module__}.{kind.__name__}".endswith(PAGED) for kind in kinds):
        return None
    caches = [attention.kv_cache.transpose(1, 2) for attention in model._attn_layers]
    halves = [cache.split(model._head_dim, dim=-1) for cache in caches]
    keys, values = [half[0] for half in halves], [half[-1] for half in halves]
    if any(len(half) != 2 for half in halves) or why_not_pages(keys, values, slots, dtype):
        return None
    return Pages.of(keys, values, slots)


def _by_layer(model: Any, mapping: Tensor | Sequence[Tensor | None] | None) -> list[Tensor] | None:
    """The slots of each layer; None for a dummy run, which stores nothing."""
    if mapping is None or isinstance(mapping, Tensor):
        return None if mapping is None else [mapping] * len(model.layers)
    slots = [one for one in mapping if one is not None]
    return slots if len(slots) == len(mapping) else None


def _norms(model: Any) -> Norms:
    return Norms(model._k_norm_weights, model._rope_cos_sin_cache, model._rms_norm_eps)


def _project(model: Any, states: Tensor) -> Tensor:
    """Keys and values of all layers as vLLM projects them, [tokens, layers, 2, heads, head_dim]."""
    from vllm import _custom_ops as ops

    normed = torch.empty_like(states)
    ops.rms_norm(normed, states, model._hidden_norm_weight, model._rms_norm_eps)
    raw = F.linear(normed, model._fused_kv_weight, model._fused_kv_bias)
    return raw.view(len(states), model._num_attn_layers, 2, model._num_kv_heads, model._head_dim)


def _store(model: Any, raw: Tensor, positions: Tensor, slots: list[Tensor], pages: Pages | None) -> None:
    """Norm, rotate and store, in one launch or by the layers' own backend behind it."""
    if pages is not None:
        to_pages(raw, positions, _norms(model), pages, slots[0])
        return
    keys, values = apart(raw, positions, _norms(model))
    for layer, attention in enumerate(model._attn_layers):
        attention.impl.do_kv_cache_update(attention, keys[layer], values[layer], attention.kv_cache, slots[layer])
