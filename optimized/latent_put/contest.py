"""What the norm, RoPE and write of latents are timed on: a full batch's blocks, one layer after the other."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.latent_put.switch import put_latents
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dspark import DSparkDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """The latents of every layer, behind contexts half as long as they can be."""
    settings = behind_a_shallow_target(replace(settings, drafter="dspark"))
    drafter, width = DSparkDrafter(settings, Target(settings), Batch(settings)), settings.table_width
    drafter.table.copy_(1 + torch.arange(settings.batch * width).view(settings.batch, width))
    drafter.visible_context.fill_(settings.draft_context // 2)
    drafter.metadata()
    positions = drafter.visible_context.unsqueeze(1) + torch.arange(drafter.block, device=settings.device)
    size = (settings.batch, drafter.block, drafter.latent_size)
    raw = torch.randn(size, device=settings.device).to(settings.torch_dtype)
    layers = range(len(drafter.layers))
    latents = [put_latents(drafter, index, raw, positions) for index in layers]
    cells = drafter.block_pages, drafter.block_rows
    return Contest(
        "the block's latents of all layers, normed, rotated and written",
        stock=lambda: [drafter.put_latents(index, raw, positions) for index in layers],
        fast=lambda: [put_latents(drafter, index, raw, positions) for index in layers],
        read=(*(raw for _ in layers), positions, *cells, *(layer.latent_norm for layer in drafter.layers)),
        written=(*latents, *latents),
    )
