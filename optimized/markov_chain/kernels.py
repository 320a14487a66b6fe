"""A step of a Markov head over the whole vocabulary, and the tokens that its steps chose, in Triton.

A score and its token make one key, an int64 whose order is PyTorch's argmax: the score's bits as an ordered integer
above, the tokens counted backwards below. So the best of all programs is an atomic maximum, whatever order they come
in. No kernel calls a helper: an interpreted kernel could not leave Triton as it found it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["batch", "step", "keys_step"])  # type: ignore[untyped-decorator]
def score_step(
    keys: tl.tensor,
    first: tl.tensor,
    logits: tl.tensor,
    refined: tl.tensor,
    embedding: tl.tensor,
    projection: tl.tensor,
    batch: tl.tensor,
    step: tl.tensor,
    vocab: tl.tensor,
    keys_step: tl.tensor,
    first_row: tl.tensor,
    logits_row: tl.tensor,
    logits_step: tl.tensor,
    refined_row: tl.tensor,
    refined_step: tl.tensor,
    embedding_row: tl.tensor,
    projection_row: tl.tensor,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    FIRST: tl.constexpr,
    KEEP: tl.constexpr,
    CUTS: tl.constexpr,
) -> None:
    """Raise keys[step] [batch] to the best of logits[:, step] + projection @ embedding[token of the step before].

    Grid: programs that share the tiles of the vocabulary x blocks of ROWS requests. `first` holds the tokens before
    the first step; later ones stand in keys[step - 1]. The bias and the sum are rounded as PyTorch rounds them, the
    sums go to `refined` where KEEP. CUTS is for the interpreter in bfloat16, which it can neither multiply nor round.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    live = row < batch
    if FIRST:
        previous = tl.load(first + row * first_row, mask=live, other=0).to(tl.int64)
    else:
        chosen = tl.load(keys + (step - 1) * keys_step + row, mask=live, other=0)
        previous = 0x7FFFFFFF - (chosen & 0x7FFFFFFF)
    rank = tl.arange(0, WIDTH)
    real = rank < RANK
    at = previous[None, :] * embedding_row + rank[:, None]
    embedded = tl.load(embedding + at, mask=live[None, :] & real[:, None], other=0.0)
    if CUTS:
        embedded = embedded.to(tl.float32)

    best = tl.full([TILE, ROWS], -9223372036854775807, tl.int64)
    base = row.to(tl.int64)[None, :]
    for tile in range(tl.program_id(0), (vocab + TILE - 1) // TILE, tl.num_programs(0)):
        token = tile * TILE + tl.arange(0, TILE)
        there = token < vocab
        seen = there[:, None] & live[None, :]
        here = base * logits_row + step * logits_step + token[:, None]
        scores = tl.load(logits + here, mask=seen, other=0.0).to(tl.float32)
        beside = token.to(tl.int64)[:, None] * projection_row + rank[None, :]
        weights = tl.load(projection + beside, mask=there[:, None] & real[None, :], other=0.0)
        if CUTS:
            weights = weights.to(tl.float32)
        bias = tl.dot(weights, embedded, input_precision="ieee")
        if CUTS:
            bits = bias.to(tl.int32, bitcast=True)
            bias = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
        else:
            bias = bias.to(logits.dtype.element_ty).to(tl.float32)
        value = scores + bias
        if CUTS:
            bits = value.to(tl.int32, bitcast=True)
            value = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
        else:
            value = value.to(logits.dtype.element_ty).to(tl.float32)
        if KEEP:
            there_too = base * refined_row + step * refined_step + token[:, None]
            tl.store(refined + there_too, value.to(logits.dtype.element_ty), mask=seen)
        # PyTorch's argmax takes both zeros for equal, and a NaN for more than anything.
        value = tl.where(value == 0.0, 0.0, value)
        bits = value.to(tl.int32, bitcast=True)
        order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        order = tl.where(value != value, 0x7FFFFFFF, order)
        key = (order.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)[:, None]
        key = tl.where(there[:, None], key, -9223372036854775807)
        best = tl.maximum(best, key)
    tl.atomic_max(keys + step * keys_step + row, tl.max(best, 0), mask=live)


@triton.jit(do_not_specialize=["batch", "steps", "keys_step"])  # type: ignore[untyped-decorator]
def read_tokens(
    tokens: tl.tensor,
    keys: tl.tensor,
    batch: tl.tensor,
    steps: tl.tensor,
    keys_step: tl.tensor,
    tokens_row: tl.tensor,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """Write the tokens that keys [steps, batch] stand for to tokens int64 [batch, steps]; grid: blocks of requests."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    step = tl.arange(0, STEPS)
    there = (row < batch)[:, None] & (step < steps)[None, :]
    key = tl.load(keys + step[None, :] * keys_step + row[:, None], mask=there, other=0)
    at = tokens + row.to(tl.int64)[:, None] * tokens_row + step[None, :]
    tl.store(at, 0x7FFFFFFF - (key & 0x7FFFFFFF), mask=there)
