"""What the decoding is timed on: the block tables of a full batch, half full of pages."""

from __future__ import annotations

import torch

from optimized.block_table_refresh.refresh import refresh
from optimized.cases import Contest
from optimized.reference_cycle import bookkeeping
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.settings import Settings


def contest(settings: Settings) -> Contest:
    """One refresh; the pages of half the longest context are there."""
    batch, half = Batch(settings), settings.table_width // 2
    for row in range(settings.batch):
        batch.give_pages(row, 0, list(range(1 + row * half, 1 + (row + 1) * half)))
    batch.upload()
    table = torch.zeros(settings.batch, settings.table_width, dtype=torch.int32, device=settings.device)
    counts = torch.zeros(settings.batch, dtype=torch.int64, device=settings.device)
    asked = batch.offsets, 0, batch.divisor, table, counts
    return Contest(
        "a cycle's block tables",
        stock=lambda: bookkeeping.refresh_block_tables(*asked),
        fast=lambda: refresh(*asked),
        read=(batch.offsets[0, :, 0],),
        written=(table, counts),
    )
