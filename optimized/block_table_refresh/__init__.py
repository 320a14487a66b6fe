"""Decode the drafter's block tables and count their pages in one kernel."""

from __future__ import annotations

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

OPTIMIZATION = Optimization(
    id="block-table-refresh",
    summary="one kernel decodes the pool manager's offsets into the drafter's block tables and counts their pages",
    seed="TensorRT-LLM issue 20548",
    figure="10 operations become one; with the issue's other kernels 0.19 to 0.22 ms a step on Rubin, claimed there",
    targets=("draft.input_prep",),
    seams=(Seam("optimized.reference_cycle.bookkeeping:refresh_block_tables"),),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="int32 offsets of as many pages as the tables are wide, rows side by side, and a divisor of at least 1",
    agreement=Agreement.BITWISE,
    memory=lambda settings: 0,
    live_switchable=True,
    switch=late("optimized.block_table_refresh.refresh:OneDecoding"),
    cases=late("optimized.block_table_refresh.reference:cases"),
    contest=late("optimized.block_table_refresh.contest:contest"),
    drafters=("dspark",),
    named_set="dspark-bookkeeping",
)
