"""What the lookup is timed on: the block's inputs of a full batch, by the drafter's own method and by the lookup."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.query_build.lookup import OneLookup
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dflash import DFlashDrafter
from optimized.reference_cycle.embedding import look_up
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """One call of `build_queries`, at contexts half full."""
    settings = behind_a_shallow_target(replace(settings, drafter="dflash"))
    drafter = DFlashDrafter(settings, Target(settings), Batch(settings))
    batch, device, random = settings.batch, settings.device, torch.Generator().manual_seed(5)
    words, rows = settings.geometry.vocab, settings.speculative + 1
    accepted = torch.randint(words, (batch, rows), generator=random, dtype=torch.int32).to(device)
    counts = torch.randint(1, rows + 1, (batch,), generator=random, dtype=torch.int32).to(device)
    drafter.slots.copy_(torch.arange(batch))
    drafter.context_lengths.fill_(settings.draft_context // 2)
    switch, queries = OneLookup(), drafter.queries
    return Contest(
        "the inputs of a cycle's blocks",
        stock=lambda: drafter.build_queries(accepted, counts),
        fast=lambda: switch.build_queries(drafter, accepted, counts),
        read=(
            accepted,
            counts,
            drafter.slots,
            drafter.context_lengths[:-1],
            look_up(drafter.target.embedding, torch.arange(batch + 1, device=device)),
        ),
        written=(queries.bonus, queries.counts, queries.positions, queries.context_positions, queries.noise),
    )
