"""What the store is timed on: a full batch's verified rows, two of which were accepted."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.masked_scatter.storing import Memory, store
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dflash import DFlashDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """One call of `store_accepted`, at contexts half full."""
    settings = behind_a_shallow_target(replace(settings, drafter="dflash"))
    drafter = DFlashDrafter(settings, Target(settings), Batch(settings))
    rows, device = settings.speculative + 1, settings.device
    states = torch.randn(settings.batch, rows, settings.geometry.hidden, device=device).to(settings.torch_dtype)
    positions, counts, slots = drafter.queries.context_positions, drafter.queries.counts, drafter.slots
    slots.copy_(torch.arange(settings.batch))
    counts.fill_(2)
    half = settings.draft_context // 2
    positions.copy_(half + torch.arange(rows))
    kept = Memory(drafter.projected, drafter.stored_positions)
    both = drafter.projected, drafter.stored_positions
    stored = tuple(buffer[: settings.batch, half : half + rows] for buffer in both)
    return Contest(
        "the verified rows of a cycle",
        stock=lambda: drafter.store_accepted(states),
        fast=lambda: store(states, positions, counts, slots, kept),
        read=(states, positions, counts, slots),
        written=stored,
    )
