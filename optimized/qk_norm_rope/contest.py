"""What the kernel is timed on: the heads of one layer's block of a full batch."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.qk_norm_rope.heads import norm_and_rotate
from optimized.reference_cycle import attention
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dflash import DFlashDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """One layer's norms and rotation, at contexts half full."""
    settings = behind_a_shallow_target(replace(settings, drafter="dflash"))
    drafter = DFlashDrafter(settings, Target(settings), Batch(settings))
    norms, steps = drafter.layers[0].norms, torch.arange(drafter.block, device=settings.device)
    positions = (settings.draft_context // 2 + steps).repeat(settings.batch)
    qkv = torch.randn(len(positions), len(drafter.layers[0].qkv), device=settings.device).to(settings.torch_dtype)
    turned = norms.heads * len(norms.query), norms.kv_heads * len(norms.key)
    return Contest(
        "the heads of one layer's blocks",
        stock=lambda: attention.qk_norm_rope(qkv, positions, norms),
        fast=lambda: norm_and_rotate(qkv, positions, norms),
        read=(qkv[:, : sum(turned)], positions, norms.table[: len(steps)], norms.query, norms.key),
        written=norm_and_rotate(qkv, positions, norms)[:2],
    )
