"""Queries and keys of a block, normed and rotated in one launch, in vLLM's order, and what that does not take."""

from __future__ import annotations

from torch import Tensor

from optimized import launching
from optimized.head_order import sizes_in_pairs, why_not_proven
from optimized.objections import first_objection
from optimized.qk_norm_rope.over_heads import Pair, over_heads


def norm_and_rotate(qkv: Tensor, positions: Tensor, norms: Pair) -> tuple[Tensor, Tensor]:
    """Queries [tokens, heads x head_dim] and keys of qkv [tokens, (heads + 2 kv_heads) head_dim], normed and rotated.

    Positions are int64 [tokens]; `why_not` has no reason against these.
    """
    from optimized.qk_norm_rope import pair_kernels

    tokens, width, heads = len(qkv), len(norms.query), norms.heads + norms.kv_heads
    queries, keys = qkv.new_empty(tokens, norms.heads * width), qkv.new_empty(tokens, norms.kv_heads * width)
    sizes = sizes_in_pairs(qkv, width, tokens * heads)
    over_heads(pair_kernels.norm_in_pairs_and_rotate, qkv, positions, norms, (queries, keys), sizes)
    return queries, keys


def why_not(qkv: Tensor, positions: Tensor, norms: Pair) -> str | None:
    """Why these heads are not taken."""
    width = len(norms.query)
    parts = norms.query, norms.key, norms.table
    objections = {
        "only a part of each head rotates": norms.table.shape[1] != width,
        "norms or rotary table are of another dtype than the heads": {part.dtype for part in parts} != {qkv.dtype},
        "a norm or the rotary table is not dense": not all(part.is_contiguous() for part in parts),
        "a head's numbers do not lie side by side": qkv.ndim != 2 or qkv.stride(-1) != 1,
        "positions are not one number a token": positions.shape != qkv.shape[:1] or positions.stride(-1) != 1,
    }
    device, objection = qkv.device.type, first_objection(objections)
    return launching.why_no_kernels(device) or objection or why_not_proven(qkv.dtype, width, device)
