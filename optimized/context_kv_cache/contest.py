"""What the cache is timed on: taking the verified rows into the context and attending to it in every layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from optimized.cases import Contest, behind_a_shallow_target
from optimized.context_kv_cache.switch import ContextCaches
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dflash import DFlashDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """A cycle's context and attention at the longest context, without the rest of the block's layers."""
    settings = behind_a_shallow_target(replace(settings, drafter="dflash"))
    target, switch = Target(settings), ContextCaches()
    stock, fast = (_seated(settings, target) for _ in range(2))
    cache, block = switch.cache_of(fast), _block(stock)
    fast.recompute = partial(switch.recompute, fast)  # type: ignore[method-assign]

    def run_stock() -> list[Tensor]:
        stock.remember()
        return [stock.attend(index, *block) for index in range(len(stock.layers))]

    def run_fast() -> list[Tensor]:
        fast.remember()
        switch.seat(fast)
        return [switch.attend(fast, index, *block) for index in range(len(fast.layers))]

    visible = int(fast.visible_context.max())
    held = [part[:, : settings.batch] for part in (cache.keys, cache.values)]
    new = [part[:, :, : settings.speculative + 1] for part in held]
    return Contest(
        "a cycle's context keys and values, and attention",
        stock=run_stock,
        fast=run_fast,
        read=(fast.captured, fast.fc, cache.weight, *(part[:, :, :visible] for part in held), *block),
        written=(*new, *run_fast()),
    )


def _seated(settings: Settings, target: Target) -> DFlashDrafter:
    """A drafter whose batch is full, with contexts that the accepted rows bring to their limit."""
    drafter, rows = DFlashDrafter(settings, target, Batch(settings)), settings.speculative + 1
    random = torch.Generator(settings.device).manual_seed(6)
    drafter.projected.normal_(generator=random)
    drafter.stored_positions.copy_(torch.arange(settings.draft_context))
    drafter.slots.copy_(torch.arange(settings.batch))
    drafter.captured.normal_(generator=random)
    drafter.queries.counts.fill_(rows)
    before = max(settings.draft_context - rows, 0)
    drafter.queries.context_positions.copy_(before + torch.arange(rows))
    drafter.context_lengths.fill_(before)
    drafter.advance()
    drafter.metadata()
    return drafter


def _block(drafter: DFlashDrafter) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the block."""
    shape, rows = drafter.settings.geometry.dflash, drafter.settings.batch
    queries, keys, values = (
        torch.randn(rows, drafter.block, heads, shape.head_dim, device=drafter.settings.device)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    dtype = drafter.settings.torch_dtype
    return queries.to(dtype), keys.to(dtype), values.to(dtype)
