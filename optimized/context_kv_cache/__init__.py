"""Keep the context's keys and values per layer and slot, so that a cycle projects its K + 1 verified rows only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import ITEM_BYTES, Agreement, Optimization, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_DRAFTER = "optimized.reference_cycle.dflash:DFlashDrafter"


def _memory(settings: Settings) -> int:
    """Keys and values by slot, the stacked weights, the stacked norms, and which row each slot is in."""
    if settings.drafter != "dflash":
        return 0
    shape, item = settings.geometry.dflash, ITEM_BYTES[settings.dtype]
    width, columns = shape.kv_heads * shape.head_dim, settings.draft_context + settings.speculative + 1
    cached = 2 * shape.layers * (settings.batch + 1) * columns * width
    weights = shape.layers * (2 * width * settings.geometry.hidden + shape.head_dim)
    return (cached + weights) * item + 8 * (settings.batch + 1)


OPTIMIZATION = Optimization(
    id="context-kv-cache",
    summary="the drafter keeps its context's keys and values, projects new rows only, and attends to them in place",
    seed="TensorRT-LLM PR 13995",
    figure="156 to 452 tokens/s per user with the PR's other changes (Qwen3-8B, 8 B200, batch 64), claimed there",
    targets=("draft.context_kv", "draft.forward"),
    seams=tuple(Seam(f"{_DRAFTER}.{method}") for method in ("recompute", "remember_prompt", "advance", "attend")),
    requirements=(needs_package("torch"),),
    guard="all layers of the drafter have the same heads and rotary table, which reaches past the longest context",
    agreement=Agreement.TOLERANT,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.context_kv_cache.switch:ContextCaches"),
    cases=late("optimized.context_kv_cache.reference:cases"),
    contest=late("optimized.context_kv_cache.contest:contest"),
    drafters=("dflash",),
)
