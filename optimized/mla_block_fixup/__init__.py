"""Place the drafter's block, and say what it sees, in one kernel."""

from __future__ import annotations

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

OPTIMIZATION = Optimization(
    id="mla-block-fixup",
    summary="one kernel finds the cells and the lengths of an MLA drafter's blocks and writes their causal mask",
    seed="TensorRT-LLM issue 20548",
    figure="13 operations become one; with the issue's other kernels 0.19 to 0.22 ms a step on Rubin, claimed there",
    targets=("draft.metadata",),
    seams=(Seam("optimized.reference_cycle.dspark:DSparkDrafter.metadata"),),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="dense buffers of the block's shape: int64 cells and contexts, int32 tables and lengths, a boolean mask",
    agreement=Agreement.BITWISE,
    memory=lambda settings: 0,
    live_switchable=True,
    switch=late("optimized.mla_block_fixup.fixup:OneFixup"),
    cases=late("optimized.mla_block_fixup.reference:cases"),
    contest=late("optimized.mla_block_fixup.contest:contest"),
    drafters=("dspark",),
    named_set="dspark-bookkeeping",
)
