"""RMS norm, RoPE and placement of a context's keys in the pages of all layers' caches, values beside them, in Triton.

The order of the arithmetic is that of vLLM's CUDA kernels: see `optimized.head_order`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "layer_stride"])  # type: ignore[untyped-decorator]
def norm_rotate_and_cache(
    raw: tl.tensor,
    positions: tl.tensor,
    norms: tl.tensor,
    table: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    bases: tl.tensor,
    rows: tl.tensor,
    layer_stride: tl.tensor,
    page_stride: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    epsilon: tl.tensor,
    LAYERS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VECTOR: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    ROUND_BY_HAND: tl.constexpr,
) -> None:
    """Keys and values of raw [tokens, LAYERS, 2, HEADS, HEAD_DIM], at positions int64 [tokens], into their cells.

    Grid: blocks of ROWS rows, a row being a key head of a layer of a token; its value head is copied beside it. With
    pages of PAGE slots, `keys`, `values` and `slots` are the first layer's and bases int64 [2, LAYERS] how many
    elements further on each layer's cache and slots lie; a negative slot is no cell. Without, PAGE 0, a layer's tokens
    come one after the other. `table` is cos | sin by position, in the dtype of raw.
    """
    # Rows past the last one are the last one again.
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)[:, None]
    head, layer, token = row % HEADS, row // HEADS % LAYERS, (row // (HEADS * LAYERS)).to(tl.int64)
    x = raw + (token * LAYERS + layer) * (2 * HEADS * HEAD_DIM) + head * HEAD_DIM
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

    weight, x = norms + layer * HEAD_DIM + low, x + low
    first, second = scale * tl.load(x).to(tl.float32), scale * tl.load(x + HEAD_DIM // 2).to(tl.float32)
    first = tl.load(weight).to(tl.float32) * first
    second = tl.load(weight + HEAD_DIM // 2).to(tl.float32) * second
    if ROUND_BY_HAND:
        # The interpreter does not round to bfloat16, but cuts.
        bits = first.to(tl.int32, bitcast=True)
        first = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        bits = second.to(tl.int32, bitcast=True)
        second = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    first = first.to(raw.dtype.element_ty).to(tl.float32)
    second = second.to(raw.dtype.element_ty).to(tl.float32)

    turn = table + tl.load(positions + token) * HEAD_DIM + low
    cos, sin = tl.load(turn).to(tl.float32), tl.load(turn + HEAD_DIM // 2).to(tl.float32)
    turned_low = first * cos - second * sin
    turned_high = second * cos + first * sin
    if ROUND_BY_HAND:
        bits = turned_low.to(tl.int32, bitcast=True)
        turned_low = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        bits = turned_high.to(tl.int32, bitcast=True)
        turned_high = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)

    if PAGE:
        slot = tl.load(slots + tl.load(bases + LAYERS + layer) + token)
        cell = tl.load(bases + layer) + slot // PAGE * page_stride + slot % PAGE * slot_stride
    else:
        slot = token
        cell = layer.to(tl.int64) * layer_stride + token * slot_stride
    key, value = keys + cell + head * head_stride + low, values + cell + head * head_stride + low
    there = (slot >= 0) & (low >= 0)
    raw_value = x + HEADS * HEAD_DIM
    tl.store(key, turned_low.to(raw.dtype.element_ty), mask=there)
    tl.store(key + HEAD_DIM // 2, turned_high.to(raw.dtype.element_ty), mask=there)
    tl.store(value, tl.load(raw_value), mask=there)
    tl.store(value + HEAD_DIM // 2, tl.load(raw_value + HEAD_DIM // 2), mask=there)
