"""What a DFlash drafter's model makes with a switch on, beside what it would have made without, for the witness."""

from __future__ import annotations

import functools
import sys
from typing import Any

_MODEL = "vllm.model_executor.models.qwen3_dflash"
_CONTEXT = "precompute_and_store_context_kv"
PAGE = 32
"""Slots of a page of the test servers."""
_apart: dict[str, list[float]] = {"contexts": [], "blocks": []}
_mended: list[tuple[type, str, Any]] = []


def compare() -> None:
    """Let every context and every layer's block also be made as it would have been, and keep how far they differ."""
    model, attention = sys.modules[_MODEL].DFlashQwen3Model, sys.modules[_MODEL].DFlashQwen3Attention
    for owner, name, both in ((model, _CONTEXT, _contexts), (attention, "forward", _blocks)):
        ours = vars(owner)[name]
        _mended.append((owner, name, ours))
        setattr(owner, name, both(ours))


def mend() -> None:
    """Undo `compare`."""
    while _mended:
        setattr(*_mended.pop())


def _contexts(ours: Any) -> Any:
    @functools.wraps(ours)
    def precompute(model: Any, context_states: Any, context_positions: Any, context_slot_mapping: Any = None) -> None:
        if context_slot_mapping is None:
            ours(model, context_states, context_positions)
            return
        slots = context_slot_mapping[0] if isinstance(context_slot_mapping, list) else context_slot_mapping
        used = slots[slots >= 0].unique() // PAGE
        caches = [attention.kv_cache for attention in model._attn_layers]
        pages = [cache.movedim(max(range(cache.ndim), key=lambda dim, c=cache: c.shape[dim]), 0) for cache in caches]
        before, made = [page[used] for page in pages], []
        for side in (ours.__wrapped__, ours):
            for page, was in zip(pages, before, strict=True):
                page[used] = was
            side(model, context_states, context_positions, context_slot_mapping)
            made.append([page[used] for page in pages])
        # Pages that stay as they were differ without end.
        untouched = any(bool((page == was).all()) for page, was in zip(made[1], before, strict=True))
        apart = max(float((one - other).abs().max()) for one, other in zip(*made, strict=True))
        _apart["contexts"].append(float("inf") if untouched else apart)

    return precompute


def _blocks(ours: Any) -> Any:
    @functools.wraps(ours)
    def forward(attention: Any, positions: Any, hidden_states: Any) -> Any:
        stock = ours.__wrapped__(attention, positions, hidden_states).clone()
        made = ours(attention, positions, hidden_states)
        _apart["blocks"].append(float((made - stock).abs().max()))
        return made

    return forward


QUESTIONS = {"compare_models": compare, "compared_models": lambda: _apart, "mend_models": mend}
