"""Queries and keys of a block, normed and rotated in one launch; and whether the context is rotated as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from optimized import launching
from optimized.head_order import sizes, why_not_proven
from optimized.objections import first_objection
from optimized.qk_norm_rope.over_heads import over_heads
from optimized.reference_cycle.attention import HeadNorms
from spantrace.errors import SpantraceError

CHECKED = (0, 1, 4095)
"""Positions at which two ways of rotating are compared, and the table's last."""
Block = Callable[[Tensor, Tensor, HeadNorms], tuple[Tensor, Tensor, Tensor]]
Context = Callable[[Tensor, Tensor, HeadNorms], Tensor]


def norm_and_rotate(qkv: Tensor, positions: Tensor, norms: HeadNorms) -> tuple[Tensor, Tensor, Tensor]:
    """What `attention.qk_norm_rope` returns for the same arguments, which `why_not` has no reason against."""
    from optimized.qk_norm_rope import kernels

    tokens, width, heads = len(qkv), len(norms.query), norms.heads + norms.kv_heads
    queries = qkv.new_empty(tokens, norms.heads, width)
    keys = qkv.new_empty(tokens, norms.kv_heads, width)
    shape = sizes(qkv, width, tokens * heads)
    over_heads(kernels.norm_and_rotate_heads, qkv, positions.contiguous(), norms, (queries, keys), shape)
    return queries, keys, qkv[:, heads * width :].unflatten(-1, (norms.kv_heads, width))


def why_not(dtype: torch.dtype, norms: HeadNorms) -> str | None:
    """Why heads of that dtype, with these norms, are not taken."""
    table, width = norms.table, len(norms.query)
    objections = {
        "a head norm is missing or of another size": norms.query.shape != norms.key.shape,
        "its rotary frequencies are scaled, as by YaRN": norms.rope.factor != 1.0,
        "only a part of each head rotates": norms.rope.partial != 1.0 or table.shape[1] != width,
        "its norms are of another dtype than its heads": {norms.query.dtype, norms.key.dtype} != {dtype},
        "a head norm's numbers do not lie side by side": not (
            norms.query.is_contiguous() and norms.key.is_contiguous()
        ),
        "its rotary table is not dense float32": table.dtype != torch.float32 or not table.is_contiguous(),
    }
    device, objection = table.device.type, first_objection(objections)
    return launching.why_no_kernels(device) or objection or why_not_proven(dtype, width, device)


def why_not_here(qkv: Tensor, norms: HeadNorms) -> str | None:
    """Why these heads are not taken, where `why_not` has no reason against their norms."""
    if qkv.dtype != norms.query.dtype:
        return "its norms are of another dtype than its heads"
    return None if qkv.stride(-1) == 1 else "a head's numbers do not lie side by side"


def assert_same_rope(block: Block, context: Context, norms: HeadNorms) -> None:
    """Raise SpantraceError unless block and context rotate every unit vector to the same bits, at four positions.

    Both take qkv [tokens, (heads + 2 kv_heads) head_dim], positions int64 [tokens] and norms. A unit vector's norm is
    the same in whatever order its squares are added up.
    """
    width, last = len(norms.key), len(norms.table) - 1
    at = torch.tensor([position for position in (*CHECKED, last) if position <= last], device=norms.table.device)
    units = torch.eye(width, dtype=norms.key.dtype, device=norms.table.device)
    qkv = units.repeat(len(at), norms.heads + 2 * norms.kv_heads)
    positions = at.repeat_interleave(width)
    queries, keys, _ = block(qkv, positions, replace(norms, query=norms.key))
    wanted = context(qkv, positions, norms)
    if not (torch.equal(keys, wanted) and torch.equal(queries, wanted[:, :1].expand_as(queries))):
        raise SpantraceError("the drafter's context is rotated otherwise than its block")
