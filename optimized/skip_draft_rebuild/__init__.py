"""Build no draft metadata and no slot mappings for a drafter whose FULL graph is replayed and reads neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam
from optimized.skip_draft_rebuild.restored import RESTORED_STOCK
from optimized.skip_draft_rebuild.sources import BUILD, BUILD_UNIFORM, CALLED_DISPATCH, DISPATCH, SETTLE, SOURCES

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

__all__ = ["OPTIMIZATION", "RESTORED_STOCK"]
_BEFORE_UPSTREAM = "vllm >=0.26,!=0.27.*,<0.32"


def _memory(_: Settings) -> int:
    return 0


OPTIMIZATION = Optimization(
    id="skip-draft-rebuild",
    summary="no draft metadata and no slot mappings are built for a FULL graph, which reads the drafter's own buffers",
    seed="vLLM, four fixes for DFlash and DSpark, fix 3",
    figure="the dead rebuild 0.125 to 0.007 ms a cycle on a GB200, claimed there",
    targets=("draft.metadata",),
    seams=(
        Seam(CALLED_DISPATCH, _BEFORE_UPSTREAM, DISPATCH),
        Seam(BUILD, "vllm >=0.26,!=0.27.*,<0.30"),
        Seam(BUILD_UNIFORM, "vllm >=0.30,<0.32"),
        Seam(SETTLE, _BEFORE_UPSTREAM),
    ),
    requirements=(needs_package("vllm"),),
    guard="every builder is exactly Triton's, without R-SWA, and no context parallelism; a hit is one replay",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    vllm_switch=late("optimized.skip_draft_rebuild.vllm:SkipRebuild"),
    cases=late("optimized.skip_draft_rebuild.reference:cases"),
    sources=SOURCES,
    upstream=">=0.32,<0.34",
    methods=("dflash", "dspark"),
    evidence="examples/results/h200-campaign-0.26.0-all.spantrace",
)
