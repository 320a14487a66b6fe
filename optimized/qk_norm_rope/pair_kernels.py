"""RMS norm and RoPE of a drafter's heads in the order of vLLM's CUDA kernels, in Triton: see `optimized.head_order`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def norm_in_pairs_and_rotate(
    qkv: tl.tensor,
    positions: tl.tensor,
    table: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    rows: tl.tensor,
    qkv_row: tl.tensor,
    epsilon: tl.tensor,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VECTOR: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    ROUND_BY_HAND: tl.constexpr,
) -> None:
    """The normed and rotated queries [tokens, HEADS, HEAD_DIM] and keys of qkv at positions int64 [tokens].

    Grid: blocks of ROWS rows, a row being a query or key head of a token. The norm is rounded to the dtype of the
    heads before the rotation, which is in fp32; `table` is cos | sin by position, in that dtype.
    """
    # Rows past the last one are the last one again.
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)[:, None]
    token, head = (row // (HEADS + KEY_HEADS)).to(tl.int64), row % (HEADS + KEY_HEADS)
    x = qkv + token * qkv_row + head * HEAD_DIM
    beside = x + VECTOR * tl.arange(0, LANES)[None, :]
    total = tl.full([ROWS, LANES], 0.0, tl.float32)
    for part in tl.static_range(VECTOR):
        some = tl.load(beside + part).to(tl.float32)
        total = tl.fma(some, some, total)
    if LANES > 32:
        total = tl.sum(tl.reshape(total, [ROWS, 32, 2]), 2)
    if LANES > 16:
        total = tl.sum(tl.reshape(total, [ROWS, 16, 2]), 2)
    if LANES > 8:
        total = tl.sum(tl.reshape(total, [ROWS, 8, 2]), 2)
    if LANES > 4:
        total = tl.sum(tl.reshape(total, [ROWS, 4, 2]), 2)
    if LANES > 2:
        total = tl.sum(tl.reshape(total, [ROWS, 2, 2]), 2)
    scale = tl.rsqrt(tl.sum(total, 1) * (1.0 / HEAD_DIM) + epsilon)[:, None]
    low = tl.arange(0, HEAD_DIM // 2)[None, :]

    is_query, x = head < HEADS, x + low
    weight = tl.where(is_query, query_norm, key_norm) + low
    low_norm = tl.load(weight).to(tl.float32)
    high_norm = tl.load(weight + HEAD_DIM // 2).to(tl.float32)
    first = low_norm * (scale * tl.load(x).to(tl.float32))
    second = high_norm * (scale * tl.load(x + HEAD_DIM // 2).to(tl.float32))
    if ROUND_BY_HAND:
        # The interpreter does not round to bfloat16, but cuts.
        bits = first.to(tl.int32, bitcast=True)
        first = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        bits = second.to(tl.int32, bitcast=True)
        second = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    first = first.to(qkv.dtype.element_ty).to(tl.float32)
    second = second.to(qkv.dtype.element_ty).to(tl.float32)

    turn = table + tl.load(positions + token) * HEAD_DIM + low
    cos, sin = tl.load(turn).to(tl.float32), tl.load(turn + HEAD_DIM // 2).to(tl.float32)
    turned_low = first * cos - second * sin
    turned_high = second * cos + first * sin
    if ROUND_BY_HAND:
        bits = turned_low.to(tl.int32, bitcast=True)
        turned_low = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        bits = turned_high.to(tl.int32, bitcast=True)
        turned_high = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)

    query, key = queries + (token * HEADS + head) * HEAD_DIM, keys + (token * KEY_HEADS + head - HEADS) * HEAD_DIM
    out = tl.where(is_query, query, key) + low
    tl.store(out, turned_low.to(qkv.dtype.element_ty))
    tl.store(out + HEAD_DIM // 2, turned_high.to(qkv.dtype.element_ty))
