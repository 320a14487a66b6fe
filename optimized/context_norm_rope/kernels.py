"""RMS norm, RoPE and placement of a context's keys, and placement of its values, for all layers at once, in Triton.

The order of the arithmetic is that of PyTorch's CUDA kernels, as in the kernel of the block's heads (qk-norm-rope).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "columns"])  # type: ignore[untyped-decorator]
def norm_rotate_and_place(
    raw: tl.tensor,
    positions: tl.tensor,
    norms: tl.tensor,
    table: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    cell_rows: tl.tensor,
    cell_columns: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    layer_stride: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    whose_row: tl.tensor,
    whose_step: tl.tensor,
    epsilon: tl.tensor,
    LAYERS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    LANES: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    ROUNDING: tl.constexpr,
    ROUND_BY_HAND: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """Keys and values of raw [tokens, LAYERS, 2, HEADS, HEAD_DIM], at positions int64 [tokens], into their buffers.

    Grid: blocks of ROWS rows, a row being a key head of a layer of a token; its value head is copied beside it. The
    weight is multiplied before the norm is rounded to the dtype of raw (ROUNDING 1), or after, and rounded again (2).
    Tokens come `columns` in a row. With CELLS a token's row and column are read, int64, the rows with strides of their
    own, so that they may be expanded; without, they are its own.
    """
    # Rows past the last one are the last one again.
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)[:, None]
    head, layer, token = row % HEADS, row // HEADS % LAYERS, row // (HEADS * LAYERS)
    x = raw + (token.to(tl.int64) * LAYERS + layer) * (2 * HEADS * HEAD_DIM) + head * HEAD_DIM
    four = x + 4 * tl.arange(0, LANES * WARPS)[None, :]
    total = tl.full([ROWS, LANES * WARPS], 0.0, tl.float32)
    for part in tl.static_range(4):
        some = tl.load(four + part).to(tl.float32)
        total = tl.fma(some, some, total)
    if LANES > 16:
        total = tl.sum(tl.reshape(total, [ROWS, WARPS, 2, 16]), 2)
    if LANES > 8:
        total = tl.sum(tl.reshape(total, [ROWS, WARPS, 2, 8]), 2)
    if LANES > 4:
        total = tl.sum(tl.reshape(total, [ROWS, WARPS, 2, 4]), 2)
    if LANES > 2:
        total = tl.sum(tl.reshape(total, [ROWS, WARPS, 2, 2]), 2)
    total = tl.sum(tl.sum(tl.reshape(total, [ROWS, WARPS, 2]), 2), 1)
    scale = tl.rsqrt(total * (1.0 / HEAD_DIM) + epsilon)[:, None]
    low = tl.arange(0, HEAD_DIM // 2)[None, :]

    weight, x = norms + layer * HEAD_DIM + low, x + low
    first, second = scale * tl.load(x).to(tl.float32), scale * tl.load(x + HEAD_DIM // 2).to(tl.float32)
    if ROUNDING == 2:
        if ROUND_BY_HAND:
            # The interpreter does not round to bfloat16, but cuts.
            bits = first.to(tl.int32, bitcast=True)
            first = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
            bits = second.to(tl.int32, bitcast=True)
            second = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        first = first.to(raw.dtype.element_ty).to(tl.float32)
        second = second.to(raw.dtype.element_ty).to(tl.float32)
    first = tl.load(weight).to(tl.float32) * first
    second = tl.load(weight + HEAD_DIM // 2).to(tl.float32) * second
    if ROUND_BY_HAND:
        bits = first.to(tl.int32, bitcast=True)
        first = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        bits = second.to(tl.int32, bitcast=True)
        second = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    first = first.to(raw.dtype.element_ty).to(tl.float32)
    second = second.to(raw.dtype.element_ty).to(tl.float32)

    turn = table + tl.load(positions + token) * HEAD_DIM + low
    cos, sin = tl.load(turn), tl.load(turn + HEAD_DIM // 2)
    turned_low = first * cos - second * sin
    turned_high = second * cos + first * sin
    if ROUND_BY_HAND:
        bits = turned_low.to(tl.int32, bitcast=True)
        turned_low = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        bits = turned_high.to(tl.int32, bitcast=True)
        turned_high = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)

    at_row, at_column = (token // columns).to(tl.int64), (token % columns).to(tl.int64)
    if CELLS:
        at_row = tl.load(cell_rows + at_row * whose_row + at_column * whose_step)
        at_column = tl.load(cell_columns + token)
    cell = layer.to(tl.int64) * layer_stride + at_row * row_stride + at_column * column_stride + head * HEAD_DIM
    key, value, raw_value = keys + cell + low, values + cell + low, x + HEADS * HEAD_DIM
    tl.store(key, turned_low.to(raw.dtype.element_ty))
    tl.store(key + HEAD_DIM // 2, turned_high.to(raw.dtype.element_ty))
    tl.store(value, tl.load(raw_value))
    tl.store(value + HEAD_DIM // 2, tl.load(raw_value + HEAD_DIM // 2))
