"""Greedy acceptance in Triton: the best token of each tile of the vocabulary, then a verdict for each request.

Two launches, since no program may wait for another; between them there are positions only, so that a number is
compared as it was given, in any type. Of equals the first is best, and what is not a number is better than any.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def best_of_tile(
    logits: tl.tensor,
    best: tl.tensor,
    REQUEST_STRIDE: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
) -> None:
    """The best token of one tile of one row, to `best` int32 [B, ROWS, TILES]; grid: B x ROWS x TILES."""
    request, row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    token = tile * TILE + tl.arange(0, TILE)
    there = token < VOCAB
    here = logits + request * REQUEST_STRIDE + row * ROW_STRIDE + token
    value = tl.load(here, mask=there, other=float("-inf"))
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    strange = value != value
    top = tl.max(tl.where(strange, float("-inf"), value), 0)
    # The least of some positions is the greatest of them counted backwards.
    first = VOCAB - tl.max(tl.where(there & (value == top), VOCAB - token, 0), 0)
    first_strange = VOCAB - tl.max(tl.where(strange, VOCAB - token, 0), 0)
    chosen = tl.where(first_strange < VOCAB, first_strange, first)
    tl.store(best + (request * ROWS + row) * TILES + tile, chosen)


@triton.jit  # type: ignore[untyped-decorator]
def verdict_of_request(
    logits: tl.tensor,
    best: tl.tensor,
    drafts: tl.tensor,
    accepted: tl.tensor,
    counts: tl.tensor,
    newest: tl.tensor,
    drafts_request: tl.tensor,
    REQUEST_STRIDE: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    ROWS_WIDTH: tl.constexpr,
    VOCAB: tl.constexpr,
    TILES: tl.constexpr,
    TILES_WIDTH: tl.constexpr,
) -> None:
    """One request's tokens from its tiles' best, and the verdict on its drafts int64 [B, ROWS - 1]; grid: B.

    Writes accepted int32 [B, ROWS], counts int32 [B] and newest int64 [B].
    """
    request = tl.program_id(0).to(tl.int64)
    row, tile = tl.arange(0, ROWS_WIDTH), tl.arange(0, TILES_WIDTH)
    there = (row < ROWS)[:, None] & (tile < TILES)[None, :]
    token = tl.load(best + (request * ROWS + row)[:, None] * TILES + tile[None, :], mask=there, other=0)
    here = logits + request * REQUEST_STRIDE + row[:, None] * ROW_STRIDE + token
    value = tl.load(here, mask=there, other=float("-inf"))
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    strange = value != value
    top = tl.max(tl.where(strange, float("-inf"), value), 1)
    first = VOCAB - tl.max(tl.where(there & (value == top[:, None]), VOCAB - token, 0), 1)
    first_strange = VOCAB - tl.max(tl.where(strange, VOCAB - token, 0), 1)
    said = tl.where(first_strange < VOCAB, first_strange, first)
    drafted = tl.load(drafts + request * drafts_request + row, mask=row < ROWS - 1, other=-1)
    wrong = (drafted != said.to(tl.int64)) | (row >= ROWS - 1)
    stand = ROWS_WIDTH - tl.max(tl.where(wrong, ROWS_WIDTH - row, 0), 0)
    tl.store(accepted + request * ROWS + row, said, mask=row < ROWS)
    tl.store(counts + request, stand + 1)
    tl.store(newest + request, tl.sum(tl.where(row == stand, said, 0), 0).to(tl.int64))
