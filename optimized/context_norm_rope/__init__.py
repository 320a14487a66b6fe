"""Norm, rotate and place the context's keys and values of all layers in one launch after the projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings


def _memory(settings: Settings) -> int:
    """Nothing: it writes where the chain would have written."""
    return 0


OPTIMIZATION = Optimization(
    id="context-norm-rope",
    summary="after the projection one launch norms, rotates and places the context of all layers that were projected",
    seed="TensorRT-LLM PR 13995",
    figure="a repeated position vector and a query that nobody reads are saved there; no figure of its own is claimed",
    targets=("draft.context_kv",),
    seams=(
        Seam("optimized.reference_cycle.attention:place_context"),
        Seam("optimized.reference_cycle.dflash:DFlashDrafter.context_kv"),
    ),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="all layers norm with one epsilon, RoPE over the whole head, 16 bits a number on a GPU, dense projections",
    agreement=Agreement.PINNED,
    proven="torch 2.11.0 with triton 3.6.0 on an H200, where the order of its arithmetic was found",
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.context_norm_rope.switch:OneLaunch"),
    cases=late("optimized.context_norm_rope.reference:cases"),
    contest=late("optimized.context_norm_rope.contest:contest"),
    drafters=("dflash",),
)
