"""Attention of a drafter's block to keys and values that lie by slot, in Triton.

The running softmax is that of Milakov and Gimelshein (2018), in base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def attend_by_slot(
    query: tl.tensor,
    own_keys: tl.tensor,
    own_values: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    columns: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    query_row: tl.tensor,
    query_token: tl.tensor,
    query_head: tl.tensor,
    key_row: tl.tensor,
    key_token: tl.tensor,
    key_head: tl.tensor,
    value_row: tl.tensor,
    value_token: tl.tensor,
    value_head: tl.tensor,
    pool_row: tl.tensor,
    pool_column: tl.tensor,
    pool_head: tl.tensor,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    APPEND: tl.constexpr,
) -> None:
    """One request's block under one key head; grid: requests x key heads and blocks of rows.

    A row is a token of the block under one of the key head's GROUP query heads. The request's keys and values are the
    row slots[b] of the pools [slots, columns, KEY_HEADS, HEAD_DIM], up to the block's own, which begin at column
    columns[b, 0] and are there already; with APPEND this kernel writes them there and reads them from where they are.
    """
    request = tl.program_id(0).to(tl.int64)
    key_head_index, part = tl.program_id(1) // ROW_BLOCKS, tl.program_id(1) % ROW_BLOCKS
    slot, context = tl.load(slots + request), tl.load(columns + request * BLOCK)
    row = part * ROWS + tl.arange(0, ROWS)
    token, head = row // GROUP, key_head_index * GROUP + row % GROUP
    live = token < BLOCK
    position = context + token
    dim = tl.arange(0, WIDTH)
    real = dim < HEAD_DIM

    at = request * query_row + token[:, None] * query_token + head[:, None] * query_head + dim[None, :]
    asked = tl.load(query + at, mask=live[:, None] & real[None, :], other=0.0)
    pool = slot * pool_row + key_head_index * pool_head
    own_key = own_keys + request * key_row + key_head_index * key_head
    own_value = own_values + request * value_row + key_head_index * value_head
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    seen = tl.full([ROWS, WIDTH], 0.0, tl.float32)
    first = tl.maximum(context - WINDOW + 1, 0) if WINDOW > 0 else context * 0
    for tile in range(first // TILE, (context + BLOCK + TILE - 1) // TILE):
        column = tile * TILE + tl.arange(0, TILE)
        there = (column >= first) & (column < context + BLOCK)
        old = there & (column < context) if APPEND else there
        within = pool + column * pool_column
        key_tile = tl.load(keys + within[None, :] + dim[:, None], mask=old[None, :] & real[:, None], other=0.0)
        value_tile = tl.load(values + within[:, None] + dim[None, :], mask=old[:, None] & real[None, :], other=0.0)
        if APPEND:
            new, place = there & (column >= context), column - context
            new_keys = own_key + place[None, :] * key_token + dim[:, None]
            new_key = tl.load(new_keys, mask=new[None, :] & real[:, None], other=0.0)
            key_tile = tl.where(new[None, :], new_key, key_tile)
            new_values = own_value + place[:, None] * value_token + dim[None, :]
            new_value = tl.load(new_values, mask=new[:, None] & real[None, :], other=0.0)
            value_tile = tl.where(new[:, None], new_value, value_tile)
            if part == 0:
                tl.store(keys + within[None, :] + dim[:, None], new_key, mask=new[None, :] & real[:, None])
                tl.store(values + within[:, None] + dim[None, :], new_value, mask=new[:, None] & real[None, :])
        scores = tl.dot(asked, key_tile, input_precision="ieee") * scale
        visible = there[None, :] & live[:, None]
        if CAUSAL:
            visible = visible & (column[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (column[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(top - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        seen = seen * shrink[:, None] + tl.dot(weights.to(value_tile.dtype), value_tile, input_precision="ieee")
        top = higher

    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        total = total * tl.exp2(top - higher) + tl.exp2(sink - higher)
        seen = seen * tl.exp2(top - higher)[:, None]
    answer = seen / tl.where(total > 0.0, total, 1.0)[:, None]
    to = ((request * BLOCK + token[:, None]) * KEY_HEADS * GROUP + head[:, None]) * HEAD_DIM + dim[None, :]
    tl.store(out + to, answer.to(out.dtype.element_ty), mask=live[:, None] & real[None, :])
