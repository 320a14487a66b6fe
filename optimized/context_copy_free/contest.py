"""What the context's norm and RoPE are timed on: the verified rows of a full batch, in all layers."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.context_copy_free.switch import OneLaunch
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dspark import DSparkDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """One cycle's latents, at positions half way."""
    settings = behind_a_shallow_target(replace(settings, drafter="dspark"))
    drafter, switch = DSparkDrafter(settings, Target(settings), Batch(settings)), OneLaunch()
    rows = torch.arange(settings.speculative + 1, device=settings.device)
    positions = (settings.draft_context // 2 + rows).repeat(settings.batch, 1)
    size = (*positions.shape, len(drafter.layers), drafter.latent_size)
    raw = torch.randn(size, device=settings.device).to(settings.torch_dtype)
    return Contest(
        "the context's new latents of all layers, normed and rotated",
        stock=lambda: drafter.finish_latents(raw, positions),
        fast=lambda: switch.finish_latents(drafter, raw, positions),
        read=(raw, positions, switch.norms_of(drafter)),
        written=(raw,),
    )
