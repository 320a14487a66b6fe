"""Mask and scatter of states and positions in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "longest"])  # type: ignore[untyped-decorator]
def multiply_and_store(
    states: tl.tensor,
    positions: tl.tensor,
    counts: tl.tensor,
    slots: tl.tensor,
    kept: tl.tensor,
    kept_positions: tl.tensor,
    rows: tl.tensor,
    longest: tl.tensor,
    VERIFIED: tl.constexpr,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Rows of states [B, VERIFIED, HIDDEN], times 1 before counts int64 [B] and 0 from there on, to where they belong.

    Grid: blocks of ROWS rows x tiles of HIDDEN. A request's row goes to kept [slots, longest, HIDDEN] at its slot,
    int64 [B], and at the column of its position, int64 [B, VERIFIED], or the last column; the position goes beside it,
    from every tile. It is multiplied, not selected: a number that is none stays none.
    """
    # Rows past the last one are the last one again.
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)[:, None]
    dim = (tl.program_id(1) * TILE + tl.arange(0, TILE))[None, :]
    request = row // VERIFIED
    stands = (row % VERIFIED < tl.load(counts + request)).to(tl.float32)
    position = tl.load(positions + row)
    cell = tl.load(slots + request) * longest + tl.minimum(position, longest - 1)
    there = dim < HIDDEN
    state = tl.load(states + row.to(tl.int64) * HIDDEN + dim, mask=there, other=0.0).to(tl.float32)
    tl.store(kept + cell * HIDDEN + dim, (state * stands).to(kept.dtype.element_ty), mask=there)
    tl.store(kept_positions + cell, position)
