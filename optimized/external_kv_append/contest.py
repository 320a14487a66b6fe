"""What attention by slot is timed on: a block's attention in every layer, to contexts that are half full."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from optimized.cases import Contest, behind_a_shallow_target
from optimized.external_kv_append.attention import Block
from optimized.external_kv_append.switch import attend_to
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dflash import DFlashDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """A cycle's attention without the rest of the block's layers."""
    settings = behind_a_shallow_target(replace(settings, drafter="dflash"))
    target = Target(settings)
    stock, fast = (_seated(settings, target) for _ in range(2))
    fast.attend_to = partial(attend_to, fast)  # type: ignore[method-assign]
    block = _block(stock)

    def run(drafter: DFlashDrafter) -> list[Tensor]:
        return [drafter.attend(index, *block) for index in range(len(drafter.layers))]

    visible = int(fast.visible_context.max())
    return Contest(
        "a block's attention in every layer",
        stock=lambda: run(stock),
        fast=lambda: run(fast),
        read=(*(part[:, :, :visible] for part in (fast.keys, fast.values)), *block),
        written=(*(part[:, :, : fast.block] for part in (fast.keys, fast.values)), *run(fast)),
    )


def _seated(settings: Settings, target: Target) -> DFlashDrafter:
    """A drafter whose batch is full."""
    drafter, random = DFlashDrafter(settings, target, Batch(settings)), torch.Generator(settings.device).manual_seed(8)
    for part in (drafter.keys, drafter.values):
        part.normal_(generator=random)
    drafter.slots.copy_(torch.arange(settings.batch))
    drafter.visible_context.fill_(max(settings.draft_context // 2, 1))
    drafter.metadata()
    return drafter


def _block(drafter: DFlashDrafter) -> Block:
    """Queries, keys and values of the block."""
    shape, settings, random = drafter.shape, drafter.settings, torch.Generator().manual_seed(9)
    queries, keys, values = (
        torch.randn(settings.batch, drafter.block, heads, shape.head_dim, generator=random)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    where = settings.device, settings.torch_dtype
    return queries.to(*where), keys.to(*where), values.to(*where)
