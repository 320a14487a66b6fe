"""The kernel in the attention of vLLM's DFlash and DSpark drafters, where vLLM launches two norms and a rotation.

A drafter that torch.compile compiles is left to it, which fuses them by itself. The graphs of runner V2's drafter
keep what they were captured with, so it is switched at the server's start only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from optimized.captured import UNSEEN, GraphCounts, capturing
from optimized.objections import first_objection
from optimized.optimization import Counts
from optimized.pinning import Judged
from optimized.qk_norm_rope.over_heads import Pair
from optimized.qk_norm_rope.pairs import norm_and_rotate, why_not
from spantrace.patching import Function

COMPILED = "the drafter is compiled by torch.compile, which fuses them by itself"


def why_not_in_vllm(attention: Any) -> str | None:
    """Why this layer's heads are left as they are; nothing is read from the GPU."""
    from vllm import envs
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    norms, rotary = (attention.q_norm, attention.k_norm), attention.rotary_emb
    chosen = getattr(rotary._forward_method, "__func__", None)
    objections = {
        "a head norm is of another kind": any(type(norm) is not RMSNorm for norm in norms),
        "a head norm is of a part of the head": any(norm.variance_size_override is not None for norm in norms),
        "queries and keys are normed with different epsilons": len({norm.variance_epsilon for norm in norms}) > 1,
        "the rotary embedding is of a kind of its own": type(rotary).forward_cuda is not RotaryEmbedding.forward_cuda,
        "vLLM's rotation is switched off": chosen is RotaryEmbedding.forward_native,
        "only a part of each head rotates": rotary.rotary_dim != attention.head_dim,
        "neighbours rotate, not halves": not rotary.is_neox_style,
        "results must not depend on the batch": bool(envs.VLLM_BATCH_INVARIANT),
        "the GPU is not NVIDIA's": torch.version.hip is not None,
    }
    return first_objection(objections)


class FusedAttentionHeads:
    """The switch; a hit is a replay of a drafter's graph, or one layer's call outside of graphs."""

    def __init__(self) -> None:
        from optimized.qk_norm_rope import OPTIMIZATION

        self.counts = Counts()
        self._judged = Judged(OPTIMIZATION)
        self._graphs = GraphCounts(self.counts)
        self._broken: str | None = None

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The layer, and where the drafter's graphs become known."""
        return {
            "DFlashQwen3Attention.forward": self._forward,
            "DFlashSpeculator.init_cudagraph_manager": self._managed,
        }

    def allocated(self) -> int:
        """Nothing is held."""
        return 0

    def close(self) -> None:
        """Count no more."""
        self._graphs.close()

    def _forward(self, original: Function) -> Function:
        @wraps(original)
        def forward(attention: Any, positions: Tensor, hidden_states: Tensor) -> Tensor:
            if torch.compiler.is_compiling():
                return original(attention, positions, hidden_states)
            made = self._heads(attention, positions, hidden_states)
            if made is None:
                return original(attention, positions, hidden_states)
            output, _ = attention.o_proj(attention.attn(*made))
            return output

        return forward

    def _heads(self, attention: Any, positions: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Queries, keys and values to attend by; None where vLLM must make them."""
        made, reason = None, self._broken
        if reason is None:
            try:
                reason = self._judged.why_not(capturing(states)) or why_not_in_vllm(attention)
                if reason is None:
                    reason, made = _made(attention, positions, states)
            except Exception as error:
                self.counts.failed(error)
                reason = self._broken = "it failed before"
        self._graphs.note(states, len(states), reason)
        return made

    def _managed(self, original: Function) -> Function:
        @wraps(original)
        def init_cudagraph_manager(speculator: Any, *arguments: Any, **named: Any) -> Any:
            result = original(speculator, *arguments, **named)
            try:
                compiled = not getattr(speculator.model.model, "do_not_compile", True)
                manager, otherwise = speculator.query_cudagraph_manager, COMPILED if compiled else UNSEEN
                self._graphs.follow(manager, lambda graph: int(graph.num_tokens), otherwise)
            except Exception as error:
                self.counts.failed(error)
            return result

        return init_cudagraph_manager


def _made(attention: Any, positions: Tensor, states: Tensor) -> tuple[str | None, tuple[Tensor, Tensor, Tensor] | None]:
    """Why the kernel does not take these, or what it makes of them, beside the values as vLLM scales them."""
    qkv, _ = attention.qkv_proj(states)
    query, key, table = attention.q_norm.weight.data, attention.k_norm.weight.data, attention.rotary_emb.cos_sin_cache
    heads, kv_heads, epsilon = attention.num_heads, attention.num_kv_heads, attention.q_norm.variance_epsilon
    norms = Pair(query, key, table, heads, kv_heads, epsilon)
    if reason := why_not(qkv, positions, norms):
        return reason, None
    values = qkv[:, attention.q_size + attention.kv_size :]
    if (scale := getattr(attention, "v_scale", None)) is not None:
        values = values * scale
    return None, (*norm_and_rotate(qkv, positions, norms), values)
