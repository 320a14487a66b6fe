"""Where vLLM has the fix: its own FULL replays get metadata built for them again, as before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam
from optimized.skip_draft_rebuild.sources import CALLED_DISPATCH, CONTEXT, DISPATCH, SETTLE, SOURCES

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_UPSTREAM = "vllm >=0.32,<0.34"


def _memory(_: Settings) -> int:
    return 0


RESTORED_STOCK = Optimization(
    id="stock-skip-draft-rebuild",
    restores="skip-draft-rebuild",
    summary="draft metadata is built for a FULL graph again, the build only: slot mappings are not, as in vLLM now",
    seed="vLLM, four fixes for DFlash and DSpark, fix 3",
    figure="the dead rebuild 0.125 ms a cycle on a GB200, claimed there",
    targets=("draft.metadata",),
    seams=(
        Seam(CALLED_DISPATCH, _UPSTREAM, DISPATCH),
        Seam(CONTEXT, _UPSTREAM),
        Seam(SETTLE, _UPSTREAM),
    ),
    requirements=(needs_package("vllm"),),
    guard="where skip-draft-rebuild would skip and vLLM updates the metadata in the graph; a hit is one replay",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    vllm_switch=late("optimized.skip_draft_rebuild.vllm:RestoreRebuild"),
    cases=late("optimized.skip_draft_rebuild.reference:restored_cases"),
    sources=SOURCES,
    methods=("dflash", "dspark"),
    evidence="examples/results/h200-campaign-0.33.0-stock.spantrace",
)
