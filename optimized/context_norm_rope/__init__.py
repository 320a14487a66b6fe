"""Norm, rotate and place the context's keys and values of all layers in one launch after the projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.context_norm_rope.sources import OF_GRAPHS, PRECOMPUTE, SOURCES
from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings


_IN_GRAPHS = ">=0.31,<0.34"
"""The versions of vLLM whose drafter's graphs hold the context."""


def _memory(settings: Settings) -> int:
    """Nothing: it writes where the chain would have written."""
    return 0


OPTIMIZATION = Optimization(
    id="context-norm-rope",
    summary="after the projection one launch norms, rotates and places the context of all layers that were projected",
    seed="TensorRT-LLM PR 13995",
    figure="a repeated position vector and a query that nobody reads are saved there; no figure of its own is claimed",
    targets=("draft.context_kv", "draft.forward"),
    seams=(
        Seam("optimized.reference_cycle.attention:place_context"),
        Seam("optimized.reference_cycle.dflash:DFlashDrafter.context_kv"),
        Seam(PRECOMPUTE, "vllm >=0.26,!=0.27.*,<0.34"),
        Seam(OF_GRAPHS, f"vllm {_IN_GRAPHS}"),
    ),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="all layers norm with one epsilon, RoPE over the whole head, 16 bits a number on a GPU, dense projections",
    agreement=Agreement.PINNED,
    proven="torch 2.11.0 with triton 3.6.0 on an H200, where the order of its arithmetic was found",
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.context_norm_rope.switch:OneLaunch"),
    vllm_switch=late("optimized.context_norm_rope.vllm:ContextInOneLaunch"),
    cases=late("optimized.context_norm_rope.reference:cases"),
    sources=SOURCES,
    captured=_IN_GRAPHS,
    methods=("dflash", "dspark"),
    contest=late("optimized.context_norm_rope.contest:contest"),
    drafters=("dflash",),
)
