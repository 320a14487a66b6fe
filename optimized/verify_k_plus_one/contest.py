"""What fewer rows are timed on: the target's pass over a full batch, of 2K rows a request and of K + 1."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from optimized.cases import Contest
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Block, Rows, Target
from optimized.verify_k_plus_one.rows import rows_per_request


def contest(settings: Settings) -> Contest:
    """One verifying pass at the longest context; random keys and values stand for the context's."""
    target, batch = Target(settings), Batch(settings)
    for row in range(settings.batch):
        first = 1 + row * settings.table_width
        batch.place(row, row, settings.context, 0)
        batch.give_pages(row, 0, list(range(first, first + settings.table_width)))
    batch.drafts.random_(settings.geometry.vocab)
    many, few = (_prepared(target, batch, rows) for rows in (2 * settings.speculative, rows_per_request(target)))
    results = target.verify(few)
    weights = [part for block in target.blocks for part in _weights(block)]
    pools = [pool.normal_() for block in target.blocks for pool in _pools(block)]
    cached, new = settings.batch * settings.context, few.tokens.numel()
    return Contest(
        "the verifying pass of the target",
        stock=lambda: target.verify(many),
        fast=lambda: target.verify(few),
        read=(*weights, target.head, *(pool.flatten(0, 1)[:cached] for pool in pools)),
        written=(results.logits, results.taps, *(pool.flatten(0, 1)[:new] for pool in pools)),
    )


def _prepared(target: Target, batch: Batch, rows: int) -> Rows:
    target.rows_per_request = lambda: rows  # type: ignore[method-assign]
    target.input_prep(batch)
    target.metadata(batch)
    return target.prepared()[rows]


def _weights(block: Block) -> list[Tensor]:
    """The matrices of a layer; its norms are too small to count, its pools hold the context."""
    mixer = [getattr(block.mixer, part.name) for part in fields(block.mixer) if part.name not in ("keys", "values")]
    return [part for part in (*mixer, block.mlp.gate_up, block.mlp.down) if isinstance(part, torch.Tensor)]


def _pools(block: Block) -> list[Tensor]:
    return [getattr(block.mixer, name) for name in ("keys", "values") if hasattr(block.mixer, name)]
