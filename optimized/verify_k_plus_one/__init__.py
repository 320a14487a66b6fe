"""Verify K + 1 rows a request instead of 2K: the rows after the last draft are fillers that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings


def _memory(settings: Settings) -> int:
    """The target's input buffers for K + 1 rows, next to those for 2K."""
    if settings.speculative < 2:
        return 0
    batch, rows = settings.batch, settings.speculative + 1
    return batch * (8 * (4 * rows + 1) + 4 * settings.table_width + rows * settings.capacity)


OPTIMIZATION = Optimization(
    id="verify-k-plus-one",
    summary="the target verifies K + 1 rows a request, without the K - 1 fillers behind the drafts",
    seed="TensorRT-LLM PR 13995",
    figure="+14.5% tokens/s per GPU at batch 64, K = 3, claimed there",
    targets=("target.input_prep", "target.metadata.attention", "target.forward", "sample"),
    seams=(Seam("optimized.reference_cycle.target:Target.rows_per_request"),),
    requirements=(needs_package("torch"),),
    guard="K is at least 2; with K = 1 there is no filler, without a drafter there is no draft",
    agreement=Agreement.TOLERANT,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.verify_k_plus_one.rows:FewerRows"),
    cases=late("optimized.verify_k_plus_one.reference:cases"),
    contest=late("optimized.verify_k_plus_one.contest:contest"),
)
