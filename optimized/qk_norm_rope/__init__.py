"""Norm and rotate a block's queries and keys in one kernel, by the table that the context was rotated by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.qk_norm_rope.sources import FORWARD, MANAGER, SOURCES
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_DRAFTER = "optimized.reference_cycle.dflash:DFlashDrafter"
_WHERE = "vllm >=0.26,!=0.27.*,<0.34"


def _memory(settings: Settings) -> int:
    """Nothing stays: what it makes is the layer's own."""
    return 0


OPTIMIZATION = Optimization(
    id="qk-norm-rope",
    summary="a layer of the drafter norms and rotates its block's queries and keys in one kernel, by the one table",
    seed="TensorRT-LLM PR 13995",
    figure="two norms and a rotation a layer become one launch; no figure of its own is claimed there",
    targets=("draft.forward",),
    seams=(
        *(Seam(f"{_DRAFTER}.{method}") for method in ("block_heads", "forward")),
        *(Seam(owner, _WHERE) for owner in (FORWARD, MANAGER)),
    ),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="head norms, plain RoPE over whole heads, 16 bits a number on a GPU, and a context that is rotated equally",
    agreement=Agreement.PINNED,
    proven="torch 2.11.0 with triton 3.6.0 on an H200, where the order of its arithmetic was found",
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.qk_norm_rope.switch:FusedHeads"),
    vllm_switch=late("optimized.qk_norm_rope.vllm:FusedAttentionHeads"),
    cases=late("optimized.qk_norm_rope.reference:cases"),
    sources=SOURCES,
    captured=_WHERE.partition(" ")[2],
    methods=("dflash", "dspark"),
    contest=late("optimized.qk_norm_rope.contest:contest"),
    drafters=("dflash",),
)
