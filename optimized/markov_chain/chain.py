"""A Markov head's chain of greedy tokens in one kernel a step: what it is given, how it is cut, and its launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optimized import launching

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_RANK = 512
PROGRAMS = 264
"""Programs that keep the memory of an H200 busy, two for each of its multiprocessors."""
TILE_BYTES, MOST_TOKENS = 32768, 128
"""Of the projection's rows in one tile, two or three of which a program has under way, and most tokens in one."""
LEAST_ROWS, MOST_ROWS = 16, 64
"""Requests that a program takes at once; a tensor core multiplies by no fewer of anything."""
LOWEST = -(2**63) + 1
"""A key below that of any score."""


@dataclass(frozen=True)
class Head:
    """embedding [words, rank] of the token before, and projection [vocab or more, rank] to a bias per token."""

    embedding: Tensor
    projection: Tensor


@dataclass(frozen=True)
class Chosen:
    """Where the results go: tokens int64 [B, steps], and the refined logits [B, steps, vocab] where they are wanted."""

    tokens: Tensor
    refined: Tensor | None = None


def empty_keys(steps: int, batch: int, device: torch.device | str) -> Tensor:
    """The best of each step and request so far, int64 [steps, batch]; the calls on a stream can share it."""
    return torch.empty(steps, batch, dtype=torch.int64, device=device)


def why_not(logits: Tensor, head: Head) -> str | None:
    """Why these logits, [B, steps, vocab], are not taken."""
    if logits.dtype not in DTYPES or {head.embedding.dtype, head.projection.dtype} != {logits.dtype}:
        return "the logits and the Markov head are not of one floating type of at most 32 bits"
    rank = head.projection.shape[1]
    if head.embedding.shape[1] != rank or rank > MOST_RANK:
        return f"the Markov head's rank is above {MOST_RANK}, or not one rank"
    if any(part.stride(-1) != 1 for part in (logits, head.embedding, head.projection)):
        return "a token's numbers do not lie side by side"
    if min(len(head.projection), len(head.embedding)) < logits.shape[-1]:
        return "the Markov head has fewer tokens than the logits"
    return launching.why_no_kernels(logits.device.type)


def draft(logits: Tensor, first: Tensor, head: Head, keys: Tensor, out: Chosen) -> None:
    """Choose a token after another, each the best of logits[:, step] and the bias of the one before.

    logits [B, steps, vocab]; first int [B], the tokens before the first step; keys as `empty_keys` makes them for as
    many requests or more. `why_not` must have no objection. Nothing that is read is written.

    A step reads the whole projection, rank x vocab numbers: 84 MB of bfloat16 at rank 256 and 163,840 tokens, which is
    20 us of an H200's 4.3 TB/s and more than its L2 cache holds from one step to the next. That is the floor of a step,
    for 1 request as for 32; stock pays it too, and its lookup, sum, argmax and copies on top. So a step is a single
    pass over the projection: programs that stay share its tiles, the bias never reaches memory, and what they choose
    goes to one atomic maximum a request, which the next step's programs read. With a fill before and the tokens' kernel
    behind, a chain of K tokens is K + 2 nodes of a graph.
    """
    from optimized.markov_chain import kernels

    (batch, steps, vocab), device = logits.shape, logits.device.type
    keys.fill_(LOWEST)
    scoring = _scoring(logits, first, head, keys, out)
    rows = scoring["ROWS"]
    grid = min(-(-vocab // scoring["TILE"]), PROGRAMS), -(-batch // rows)
    # Two programs must fit into a multiprocessor's memory, to load while the other one reduces.
    stages = 3 if rows == LEAST_ROWS else 2
    for step in range(steps):
        own = {"step": step, "FIRST": step == 0}
        launching.launch(kernels.score_step, device, grid, scoring | own, num_warps=4, num_stages=stages)
    reading = {
        "tokens": out.tokens,
        "keys": keys,
        "batch": batch,
        "steps": steps,
        "keys_step": keys.stride(0),
        "tokens_row": out.tokens.stride(0),
        "ROWS": rows,
        "STEPS": launching.power_of_two(steps),
    }
    launching.launch(kernels.read_tokens, device, (-(-batch // rows),), reading, num_warps=1)


def _scoring(logits: Tensor, first: Tensor, head: Head, keys: Tensor, out: Chosen) -> dict[str, Any]:
    """What the kernel of every step is told."""
    (batch, _, vocab), rank = logits.shape, head.projection.shape[1]
    width = max(launching.power_of_two(rank), LEAST_ROWS)
    refined = logits if out.refined is None else out.refined
    return {
        "keys": keys,
        "first": first,
        "logits": logits,
        "refined": refined,
        "embedding": head.embedding,
        "projection": head.projection,
        "batch": batch,
        "vocab": vocab,
        "keys_step": keys.stride(0),
        "first_row": first.stride(0),
        "logits_row": logits.stride(0),
        "logits_step": logits.stride(1),
        "refined_row": refined.stride(0),
        "refined_step": refined.stride(1),
        "embedding_row": head.embedding.stride(0),
        "projection_row": head.projection.stride(0),
        "RANK": rank,
        "WIDTH": width,
        "TILE": min(max(TILE_BYTES // (width * logits.element_size()), LEAST_ROWS), MOST_TOKENS),
        "ROWS": min(max(launching.power_of_two(batch), LEAST_ROWS), MOST_ROWS),
        "KEEP": out.refined is not None,
        "CUTS": logits.device.type == "cpu" and logits.dtype == torch.bfloat16,
    }
