"""Build the drafter's block with one embedding lookup of the newest tokens and a single mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.launching import why_no_kernels
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings


def _memory(settings: Settings) -> int:
    """Nothing where Triton's kernels run, else the ids to look up and two ranges, int64."""
    if settings.drafter == "none" or why_no_kernels(settings.device) is None:
        return 0
    block = 1 if settings.drafter == "eagle" else settings.speculative + (settings.drafter == "dflash")
    return 8 * (settings.batch + 1 + block + settings.speculative + 1)


OPTIMIZATION = Optimization(
    id="query-build",
    summary="one embedding lookup of every request's newest token and one mask, in one launch on a GPU",
    seed="TensorRT-LLM PR 13995",
    figure="about 10 small operations a cycle become one; no figure of its own is claimed there",
    targets=("draft.input_prep",),
    seams=(Seam("optimized.reference_cycle.drafter:Drafter.build_queries"),),
    requirements=(needs_package("torch"),),
    guard="accepted tokens of the shape and type that the buffers were made for, and a dense embedding",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.query_build.lookup:OneLookup"),
    cases=late("optimized.query_build.reference:cases"),
    contest=late("optimized.query_build.contest:contest"),
    named_set="dspark-bookkeeping",
)
