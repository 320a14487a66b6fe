"""The inputs of a drafter's block in Triton: a program for each token of each block, copies and whole numbers only."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["limit", "mask"])  # type: ignore[untyped-decorator]
def build_block(
    accepted: tl.tensor,
    counts: tl.tensor,
    slots: tl.tensor,
    lengths: tl.tensor,
    embedding: tl.tensor,
    ids: tl.tensor,
    bonus: tl.tensor,
    kept: tl.tensor,
    positions: tl.tensor,
    context: tl.tensor,
    noise: tl.tensor,
    limit: tl.tensor,
    mask: tl.tensor,
    ROWS: tl.constexpr,
    ROWS_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    EMBED: tl.constexpr,
) -> None:
    """Token `program 1` of the block of request `program 0`, and with its first token what is the request's own.

    Every program finds the newest token, accepted int32 [B, ROWS] at counts int32 [B] - 1, by itself. It writes its
    position, int64 [B, BLOCK], and its row of noise [B, BLOCK, HIDDEN] from the embedding; without EMBED the ids to
    look up, int64 [B + 1] with the mask behind all newest tokens, take the place of the rows.
    """
    request, place = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts + request).to(tl.int64)
    length = tl.load(lengths + tl.load(slots + request))
    newest = tl.load(accepted + request * ROWS + tl.maximum(count - 1, 0)).to(tl.int64)
    tl.store(positions + request * BLOCK + place, tl.minimum(length + count, limit) + place)
    if place == 0:
        row = tl.arange(0, ROWS_WIDTH)
        tl.store(context + request * ROWS + row, length + row, mask=row < ROWS)
        tl.store(bonus + request, newest)
        tl.store(kept + request, count)
    if EMBED:
        token = tl.where(place == 0, newest, mask)
        source = embedding + token * HIDDEN
        target = noise + (request * BLOCK + place).to(tl.int64) * HIDDEN
        for start in range(0, HIDDEN, WIDTH):
            column = start + tl.arange(0, WIDTH)
            real = column < HIDDEN
            tl.store(target + column, tl.load(source + column, mask=real), mask=real)
    elif place == 0:
        tl.store(ids + request, newest)
        if request == 0:
            tl.store(ids + tl.num_programs(0), mask.to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator]
def spread_rows(
    found: tl.tensor, noise: tl.tensor, BLOCK: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """Row `program 1` of the block of request `program 0`, noise [B, BLOCK, HIDDEN], from found [B + 1, HIDDEN]."""
    request, place = tl.program_id(0), tl.program_id(1)
    row = tl.where(place == 0, request, tl.num_programs(0))
    source = found + row.to(tl.int64) * HIDDEN
    target = noise + (request * BLOCK + place).to(tl.int64) * HIDDEN
    for start in range(0, HIDDEN, WIDTH):
        column = start + tl.arange(0, WIDTH)
        real = column < HIDDEN
        tl.store(target + column, tl.load(source + column, mask=real), mask=real)
