"""Pad a drafter's inputs only as far as the step before left anything else there."""

from __future__ import annotations

from optimized.bounded_padding.sources import INITIALIZE, NEEDS_CAPTURE, PREPARE, SOURCES, TO_CAPTURE, WAKE_UP
from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam

_WHERE = "vllm >=0.26,!=0.27.*,<0.34"


OPTIMIZATION = Optimization(
    id="bounded-padding",
    summary="a drafter's inputs are padded no further than the step reaches, while as many requests run as before",
    seed="beyond the write-ups: found by profiling a live server, where one program pads it all, a few rows at a time",
    figure="27 to 12 us of GPU time a cycle on an H200 with buffers of 4,096 tokens; 66 to under 5 were predicted",
    targets=("draft.input_prep",),
    seams=tuple(Seam(owner, _WHERE) for owner in (PREPARE, TO_CAPTURE, NEEDS_CAPTURE, INITIALIZE, WAKE_UP)),
    requirements=(needs_package("vllm"),),
    guard="as many requests as at the last call for these buffers, a bound that 16 divides; a hit is one call",
    agreement=Agreement.BITWISE,
    memory=lambda _: 0,
    live_switchable=True,
    vllm_switch=late("optimized.bounded_padding.vllm:BoundedPadding"),
    cases=late("optimized.bounded_padding.reference:cases"),
    sources=SOURCES,
    methods=("dflash", "dspark"),
    evidence="tests/servers/test_restore_stock.py::test_padding_that_is_there_is_not_written_again_under_load",
)
