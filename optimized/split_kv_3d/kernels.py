"""Attention of few queries to a long paged context, split along the keys, and the merge of the parts, in Triton.

The split is that of flash decoding (Dao, Haziza, Massa, Sizov 2023), with the running softmax of Milakov and
Gimelshein (2018) in base 2. No kernel calls a helper: an interpreted kernel could not leave Triton as it found it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["segments"])  # type: ignore[untyped-decorator]
def attend_to_segment(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    lengths: tl.tensor,
    starts: tl.tensor,
    part: tl.tensor,
    peak: tl.tensor,
    weight: tl.tensor,
    scale: tl.tensor,
    segments: tl.tensor,
    query_row: tl.tensor,
    query_head: tl.tensor,
    key_page: tl.tensor,
    key_row: tl.tensor,
    key_head: tl.tensor,
    value_page: tl.tensor,
    value_row: tl.tensor,
    value_head: tl.tensor,
    table_row: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_BLOCKS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
) -> None:
    """The unnormalised attention of a request's queries under one key head to one segment of its visible keys.

    Grid: requests x key heads and blocks of rows x segments. A row is a query token under one of the key head's GROUP
    query heads, so that a tile of keys is read once for all of them. What a row sees of the segment goes to `part`
    fp32 [tokens, HEADS, segments, WIDTH], its greatest score in base 2 to `peak` and the sum of its weights to
    `weight`, fp32 [tokens, HEADS, segments]; a row that sees nothing has weight 0 and leaves its part as it is.
    """
    request, segment = tl.program_id(0), tl.program_id(2)
    key_head_index, block = tl.program_id(1) // ROW_BLOCKS, tl.program_id(1) % ROW_BLOCKS
    begin = tl.load(starts + request)
    count = tl.load(starts + request + 1) - begin
    if block * ROWS >= count * GROUP:
        return
    length = tl.load(lengths + request)

    row = block * ROWS + tl.arange(0, ROWS)
    token, head = row // GROUP, key_head_index * GROUP + row % GROUP
    live = token < count
    position = length - count + token
    cell = ((begin + token).to(tl.int64) * HEADS + head) * segments + segment

    # The tiles that any query sees are dealt out evenly, whatever their number; a window's are few.
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - count - WINDOW + 1, 0)
    first_tile = first // TILE
    tiles = (length + TILE - 1) // TILE - first_tile
    low, high = first_tile + segment * tiles // segments, first_tile + (segment + 1) * tiles // segments
    if low >= high:
        tl.store(weight + cell, tl.full([ROWS], 0.0, tl.float32), mask=live)
        return

    dim = tl.arange(0, WIDTH)
    real = dim < HEAD_DIM
    at = (begin + token).to(tl.int64)[:, None] * query_row + head[:, None] * query_head + dim[None, :]
    asked = tl.load(query + at, mask=live[:, None] & real[None, :], other=0.0)
    pages = table + request.to(tl.int64) * table_row
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    seen = tl.full([ROWS, WIDTH], 0.0, tl.float32)
    for tile in range(low, high):
        key = tile * TILE + tl.arange(0, TILE)
        # Keys before the window may be of another request by now, those after the end were never written: neither
        # is read, since a NaN times no weight is a NaN.
        there = (key >= first) & (key < length)
        if PAGE % TILE == 0:
            page = tl.load(pages + tile * TILE // PAGE).to(tl.int64)
            key_at = page * key_page + (key % PAGE) * key_row
            value_at = page * value_page + (key % PAGE) * value_row
        else:
            page = tl.load(pages + key // PAGE, mask=there, other=0).to(tl.int64)
            key_at = page * key_page + (key % PAGE) * key_row
            value_at = page * value_page + (key % PAGE) * value_row
        here = keys + key_head_index * key_head + key_at[None, :] + dim[:, None]
        key_tile = tl.load(here, mask=there[None, :] & real[:, None], other=0.0)
        scores = tl.dot(asked, key_tile, input_precision="ieee") * scale
        visible = there[None, :] & live[:, None]
        if CAUSAL:
            visible = visible & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (position[:, None] - key[None, :] < WINDOW)
            if not CAUSAL:
                visible = visible & (key[None, :] - position[:, None] < WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(top - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        here = values + key_head_index * value_head + value_at[:, None] + dim[None, :]
        value_tile = tl.load(here, mask=there[:, None] & real[None, :], other=0.0)
        seen = seen * shrink[:, None] + tl.dot(weights.to(value_tile.dtype), value_tile, input_precision="ieee")
        top = higher

    tl.store(weight + cell, total, mask=live)
    tl.store(peak + cell, top, mask=live)
    tl.store(part + cell[:, None] * WIDTH + dim[None, :], seen, mask=(live & (total > 0.0))[:, None])


@triton.jit(do_not_specialize=["requests"])  # type: ignore[untyped-decorator]
def merge_segments(
    out: tl.tensor,
    part: tl.tensor,
    peak: tl.tensor,
    weight: tl.tensor,
    sinks: tl.tensor,
    starts: tl.tensor,
    requests: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SEGMENTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
) -> None:
    """One token's attention under one head from its segments' parts; grid: rows of `out` x heads.

    A sink is one more score, in natural units, that weighs and has no value. A row that sees nothing, and one that is
    no request's, becomes zeros.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    segment, dim = tl.arange(0, SEGMENTS), tl.arange(0, WIDTH)
    cell = (token.to(tl.int64) * HEADS + head) * SEGMENTS + segment
    known = token + 0 * segment < tl.load(starts + requests)
    weights = tl.load(weight + cell, mask=known, other=0.0)
    live = weights > 0.0
    peaks = tl.load(peak + cell, mask=live, other=float("-inf"))
    top = tl.max(peaks, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        top = tl.maximum(top, sink)
    base = tl.where(top == float("-inf"), 0.0, top)
    shrink = tl.where(live, tl.exp2(peaks - base), 0.0)
    total = tl.sum(weights * shrink, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - base)
    parts = tl.load(part + cell[:, None] * WIDTH + dim[None, :], mask=live[:, None], other=0.0)
    merged = tl.sum(parts * shrink[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    at = out + token.to(tl.int64) * out_row + head * out_head + dim
    tl.store(at, merged.to(out.dtype.element_ty), mask=dim < HEAD_DIM)
