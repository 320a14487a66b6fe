"""What placing the blocks is timed on: a full batch behind contexts half as long as they can be."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.mla_block_fixup.fixup import metadata
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dspark import DSparkDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """One cycle's cells, lengths and masks."""
    settings = behind_a_shallow_target(replace(settings, drafter="dspark"))
    drafter, width = DSparkDrafter(settings, Target(settings), Batch(settings)), settings.table_width
    drafter.table.copy_(1 + torch.arange(settings.batch * width).view(settings.batch, width))
    drafter.visible_context.fill_(settings.draft_context // 2)
    return Contest(
        "a cycle's blocks placed, and what they see",
        stock=drafter.metadata,
        fast=lambda: metadata(drafter),
        read=(drafter.visible_context, drafter.table[:, : drafter.block]),
        written=(drafter.block_pages, drafter.block_rows, drafter.block_lengths, drafter.causal_mask),
    )
