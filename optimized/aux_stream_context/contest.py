"""What the second stream is timed on: the verdict on a full batch and its rows' way into the context."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from optimized.aux_stream_context.ahead import Ahead
from optimized.cases import Contest, behind_a_shallow_target
from optimized.reference_cycle.acceptance import Verifier
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dspark import DSparkDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """From the target's logits to the written latents, at the beginning of the contexts, which do not matter here."""
    settings = behind_a_shallow_target(replace(settings, drafter="dspark"))
    batch, target = Batch(settings), Target(settings)
    stock, fast = (DSparkDrafter(settings, target, batch) for _ in range(2))
    random = torch.Generator(settings.device).manual_seed(8)
    rows, words = settings.speculative + 1, settings.geometry.vocab
    logits = torch.empty(settings.batch, rows, words, dtype=settings.torch_dtype, device=settings.device)
    logits.normal_(generator=random)
    captured = torch.empty_like(fast.captured).normal_(generator=random)
    for drafter in (stock, fast):
        drafter.captured.copy_(captured)
        drafter.queries.counts.fill_(rows)
        drafter.queries.context_positions.copy_(torch.arange(rows))
        drafter.page_counts.fill_(settings.table_width)
        drafter.table.copy_(torch.arange(drafter.table.numel(), dtype=torch.int32).view_as(drafter.table) + 1)
    ahead, verifier = Ahead(fast), Verifier()
    fast.context_rows = lambda: ahead.rows  # type: ignore[method-assign]

    def serial() -> list[Tensor]:
        verifier.accept(logits, batch.drafts)
        stock.remember()
        return stock.pools

    def forked() -> list[Tensor]:
        ahead.start()
        verifier.accept(logits, batch.drafts)
        ahead.join()
        fast.remember()
        return fast.pools

    return Contest(
        "a verdict, and the rows' latents into the context",
        stock=serial,
        fast=forked,
        read=(logits, batch.drafts, fast.captured, fast.fc, fast.latent_matrix),
        written=(ahead.rows,),
    )
