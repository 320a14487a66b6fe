"""Copy no sampling parameters to the GPU in a step for which no request was added: they lie there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam
from optimized.unchanged_sampling.sources import ADD, SOURCES, WRITE

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_WHERE = "vllm >=0.26,!=0.27.*,<0.34"


def _memory(_: Settings) -> int:
    return 0


OPTIMIZATION = Optimization(
    id="unchanged-sampling",
    summary="sampling parameters are copied to the GPU only in a step for which a request was added",
    seed="beyond the write-ups: found by reading vLLM's step",
    figure="some 15 copies a step; predicted 0.05 to 0.1 ms of host time a cycle on an H200, not told from noise there",
    targets=("target.input_prep",),
    seams=(Seam(ADD, _WHERE), Seam(WRITE, _WHERE)),
    requirements=(needs_package("vllm"),),
    guard="no request was added since the last copies, and no logits processor but vLLM's own; a hit is one step",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    vllm_switch=late("optimized.unchanged_sampling.vllm:UnchangedSampling"),
    cases=late("optimized.unchanged_sampling.reference:cases"),
    sources=SOURCES,
    evidence="tests/servers/test_restore_stock.py::test_parameters_that_did_not_change_are_not_copied_again_under_load",
)
