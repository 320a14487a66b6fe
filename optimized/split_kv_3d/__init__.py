"""Split the keys that a drafter's block attends to over many programs, by what the block sees of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam
from optimized.split_kv_3d.sources import CAPTURE, CAPTURE_TARGET, DISPATCH, FORWARD, SET_ATTN, SOURCES

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_WHERE = "vllm >=0.26,!=0.27.*,<0.34"


def _memory(settings: Settings) -> int:
    """The parts of every request's block."""
    if settings.drafter == "none":
        return 0
    from optimized.split_kv_3d.attention import MOST_QUERIES, scratch_bytes

    shape, block = settings.geometry.dflash, settings.speculative + (settings.drafter == "dflash")
    return scratch_bytes(settings.batch * min(block, MOST_QUERIES), shape.heads, shape.head_dim)


OPTIMIZATION = Optimization(
    id="split-kv-3d",
    summary="a drafter's block of up to 8 tokens attends in segments of the keys that it sees, which programs share",
    seed="vLLM, four fixes for DFlash and DSpark, fix 2",
    figure="the drafter's graph 0.799 to 0.592 ms a cycle on a GB200, claimed there",
    targets=("draft.forward",),
    seams=tuple(Seam(owner, _WHERE) for owner in (FORWARD, SET_ATTN, CAPTURE, CAPTURE_TARGET, DISPATCH)),
    requirements=(needs_package("vllm"), needs_package("triton")),
    guard="a drafter's layer on the Triton backend, at most 8 queries a request and as many requests as vLLM splits",
    agreement=Agreement.TOLERANT,
    memory=_memory,
    live_switchable=True,
    vllm_switch=late("optimized.split_kv_3d.vllm:SplitKv"),
    cases=late("optimized.split_kv_3d.reference:cases"),
    sources=SOURCES,
    methods=("dflash", "dspark"),
    evidence="examples/results/h200-campaign-0.26.0-all.spantrace",
)
