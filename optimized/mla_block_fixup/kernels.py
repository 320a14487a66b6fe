"""Where a block lies behind its context, and what each of its tokens sees, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["width", "columns"])  # type: ignore[untyped-decorator]
def place_block(
    context: tl.tensor,
    table: tl.tensor,
    pages: tl.tensor,
    rows: tl.tensor,
    lengths: tl.tensor,
    mask: tl.tensor,
    width: tl.tensor,
    columns: tl.tensor,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Token `program 0` of the blocks of BLOCK tokens: its cell, and what it sees of the columns of tile `program 1`.

    It stands at context int64 [B] plus its place; by table int32 [B, width] that is in pages and rows int64 [B, BLOCK].
    mask bool [B, BLOCK, columns] is true up to its own column. Its block's lengths int32 [B] are written with the
    first token.
    """
    token = tl.program_id(0).to(tl.int64)
    request, place = token // BLOCK, token % BLOCK
    first = tl.load(context + request)
    own = first + place
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    tl.store(mask + token * columns + column, column <= own, mask=column < columns)
    if tl.program_id(1) == 0:
        tl.store(pages + token, tl.load(table + request * width + own // PAGE).to(tl.int64))
        tl.store(rows + token, own % PAGE)
        if place == 0:
            tl.store(lengths + request, (first + BLOCK).to(tl.int32))
