"""What the bookkeeping behind the projection is timed on: a full batch whose rows are all accepted, half way."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.gen_bookkeeping.switch import OnePost
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dspark import DSparkDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """One step's latents to their pages, and the contexts advanced."""
    drafter = _seated(behind_a_shallow_target(replace(settings, drafter="dspark")))
    queries, switch = drafter.queries, OnePost()
    shape = (*queries.context_positions.shape, len(drafter.pools), drafter.latent_size)
    latents = torch.randn(shape, device=settings.device).to(settings.torch_dtype)

    def stock() -> None:
        drafter.keep_latents(latents)
        drafter.advance()

    half, pages = int(queries.context_positions[0, 0]), slice(1, 1 + drafter.table.numel())
    written = [
        pool[pages].view(len(drafter.table), -1, pool.shape[-1])[:, half : half + shape[1]] for pool in drafter.pools
    ]
    held = (drafter.page_counts, drafter.table[:, : shape[1]], drafter.slots)
    return Contest(
        "a step's latents written and its contexts advanced",
        stock=stock,
        fast=lambda: switch.keep_latents(drafter, latents),
        read=(latents, queries.context_positions[:, 0], queries.counts, *held),
        written=(*written, drafter.context_lengths, drafter.visible_context),
    )


def _seated(settings: Settings) -> DSparkDrafter:
    """A drafter whose batch is full of requests with contexts half as long as they can be, and pages for all of it."""
    drafter, width = DSparkDrafter(settings, Target(settings), Batch(settings)), settings.table_width
    drafter.table.copy_(1 + torch.arange(settings.batch * width).view(settings.batch, width))
    drafter.page_counts.fill_(width)
    drafter.slots.copy_(torch.arange(settings.batch))
    drafter.queries.counts.fill_(settings.speculative + 1)
    half = settings.draft_context // 2
    drafter.queries.context_positions.copy_(half + torch.arange(settings.speculative + 1))
    return drafter
