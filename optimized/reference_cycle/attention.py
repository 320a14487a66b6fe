"""Attention in plain PyTorch over gathered keys, and the small functions that both models share.

Optimizations replace functions of this module, so every caller names them through it: `attention.qk_norm_rope(...)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle.geometry import Rope
from optimized.reference_cycle.rope import rotate_halves

EPSILON = 1e-6


def rms_norm(x: Tensor, weight: Tensor, epsilon: float = EPSILON) -> Tensor:
    """x [..., n] divided by its root mean square over n, times weight [n]; float32 inside, x's dtype outside."""
    return F.rms_norm(x, (weight.shape[0],), weight, epsilon)


@dataclass(frozen=True)
class HeadNorms:
    """What a layer does to its heads before attending: norm weights [head_dim] and the model's rotary table.

    `rope` is what the table was made of; the norms add `epsilon` to the mean square.
    """

    query: Tensor
    key: Tensor
    table: Tensor
    heads: int
    kv_heads: int
    rope: Rope
    epsilon: float = EPSILON


def qk_norm_rope(qkv: Tensor, positions: Tensor, norms: HeadNorms) -> tuple[Tensor, Tensor, Tensor]:
    """Norm and rotate the queries and keys of qkv [tokens, (heads + 2 kv_heads) head_dim] at positions [tokens].

    Returns queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim]; values pass as they are.
    """
    heads = qkv.unflatten(-1, (norms.heads + 2 * norms.kv_heads, -1))
    queries, keys, values = heads.split((norms.heads, norms.kv_heads, norms.kv_heads), dim=-2)
    queries = rotate_halves(rms_norm(queries, norms.query, norms.epsilon), positions, norms.table)
    keys = rotate_halves(rms_norm(keys, norms.key, norms.epsilon), positions, norms.table)
    return queries, keys, values


def place_context(
    raw: Tensor,
    positions: Tensor,
    norms: Tensor,
    table: Tensor,
    into: tuple[Tensor, Tensor],
    epsilon: float,
    cells: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Norm and rotate the keys of raw [..., layers, 2, kv_heads, head_dim], and place them and the values.

    `norms` [layers, head_dim] are the layers' key norms, `table` turns by positions int64 [...]. Keys and values go
    into buffers [layers, rows, columns, kv_heads, head_dim], to the row and column of `cells`, int64 [...] each;
    without cells the buffers are [layers, ..., kv_heads, head_dim].
    """
    keys, values = raw.unbind(-3)
    turned = rotate_halves(norm_layers(keys, norms, epsilon).flatten(-3, -2), positions, table)
    for buffer, made in zip(into, (turned.unflatten(-2, keys.shape[-3:-1]), values), strict=True):
        if cells is None:
            buffer.copy_(made.movedim(-3, 0))
        else:
            buffer[:, cells[0], cells[1]] = made.movedim(-3, 0)


def norm_layers(keys: Tensor, norms: Tensor, epsilon: float) -> Tensor:
    """RMS norm of keys [..., layers, kv_heads, head_dim] by weights [layers, head_dim], of all layers at once."""
    if len(norms) == 1:
        return rms_norm(keys, norms[0], epsilon)
    wide = keys.float() if keys.element_size() < 4 else keys
    return (F.rms_norm(wide, norms.shape[1:], None, epsilon) * norms.unsqueeze(1)).to(keys.dtype)


def gather_pages(pool: Tensor, table: Tensor) -> Tensor:
    """Each request's pages of pool [pages, page_size, ...] side by side, by table [B, MB]: [B, MB page_size, ...]."""
    return pool[table].flatten(1, 2)


def cells_of(positions: Tensor, table: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """Page and offset, both int64 [B, T], at which positions int64 [B, T] of each request lie by table [B, MB]."""
    return table.gather(1, positions // page_size).long(), positions % page_size


def visible(positions: Tensor, columns: int, ends: Tensor, window: int | None = None) -> Tensor:
    """What queries at positions [B, T] see of key columns, column c holding position c: bool [B, T, columns].

    A query sees up to column `ends` [B, T] exclusive, and with a window no further back than `window` positions,
    its own included. Causal attention ends at positions + 1, attention within a block at the block's end.
    """
    column = torch.arange(columns, device=positions.device)
    seen = column < ends.unsqueeze(-1)
    return seen if window is None else seen & (column > positions.unsqueeze(-1) - window)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax attention [B, T, heads, d] of queries [B, T, heads, d] to keys and values [B, N, kv_heads, d].

    mask [B, T, N] is true where a query sees a key; sinks [heads] are logits that take a share and give nothing.
    """
    q, k, v = (x.transpose(1, 2) for x in (queries, keys, values))
    group = q.shape[1] // k.shape[1]
    if sinks is None:
        # A GPU's fused kernels take a mask or groups of heads, not both: the heads of a group become rows of one head.
        rows = q.unflatten(1, (-1, group)).flatten(2, 3)
        seen = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask.repeat(1, group, 1).unsqueeze(1))
        return seen.unflatten(2, (group, -1)).flatten(1, 2).transpose(1, 2)
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = (q.float() @ k.float().transpose(-1, -2)) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask.unsqueeze(1), float("-inf"))
    shares = torch.cat((scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)), dim=-1).softmax(dim=-1)
    return (shares[..., :-1] @ v.float()).to(queries.dtype).transpose(1, 2)


@dataclass(frozen=True)
class Mlp:
    """SwiGLU: gate and up in one matrix [2 intermediate, hidden], down [hidden, intermediate]."""

    gate_up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., hidden] to [..., hidden]."""
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down)
