"""What the launch is timed on: the context of a full batch's verified rows in all layers, behind the projection."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.context_norm_rope.placing import place
from optimized.reference_cycle import attention
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dflash import DFlashDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """The chain that a cache of all layers runs a cycle, at contexts half full."""
    settings = behind_a_shallow_target(replace(settings, drafter="dflash"))
    drafter = DFlashDrafter(settings, Target(settings), Batch(settings))
    shape, device, rows = settings.geometry.dflash, settings.device, settings.speculative + 1
    half = settings.draft_context // 2
    columns = (half + torch.arange(rows, device=device)).repeat(settings.batch, 1)
    cells = torch.arange(settings.batch, device=device).unsqueeze(1).expand_as(columns), columns
    size = (settings.batch, rows, shape.layers, 2, shape.kv_heads, shape.head_dim)
    raw = torch.randn(size, device=device).to(settings.torch_dtype)
    norms = torch.stack([layer.norms.key for layer in drafter.layers])
    into, epsilon = (drafter.keys, drafter.values), drafter.layers[0].norms.epsilon
    given = raw, columns, norms, drafter.table, into, epsilon, cells
    return Contest(
        "all layers' keys and values of a cycle's rows, behind the projection",
        stock=lambda: attention.place_context(*given),
        fast=lambda: place(*given),
        read=(raw, columns, norms, drafter.table[:rows], *cells),
        written=tuple(buffer[:, :, half : half + rows] for buffer in into),
    )
