"""Give vLLM's Triton experts a tile that was measured for their shape and GPU, where vLLM has none of its own."""

from __future__ import annotations

from optimized.late import late
from optimized.moe_tiles.sources import APPLY, ASK, ASKED, INIT, REPLAY, SOURCES
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam

_WHERE = "vllm >=0.26,!=0.27.*,<0.34"

OPTIMIZATION = Optimization(
    id="moe-tiles",
    summary="experts of a tabled shape on a tabled GPU run with a measured tile at a few tokens, not the default one",
    seed="beyond the write-ups: vLLM warns that it has no configuration for NemotronH-30B-A3B's experts on an H200",
    figure="100 to 91 us a layer at 3 tokens in a sweep of the kernels alone on an H200; not measured in a server",
    targets=("target.forward",),
    seams=(Seam(APPLY, _WHERE), Seam(ASK, _WHERE, ASKED), Seam(INIT, _WHERE), Seam(REPLAY, _WHERE)),
    requirements=(needs_package("vllm"),),
    guard="unquantized experts on one GPU whose shape, type and tokens have a row, where nobody has configured others",
    agreement=Agreement.TOLERANT,
    memory=lambda _: 0,
    live_switchable=True,
    vllm_switch=late("optimized.moe_tiles.vllm:MoeTiles"),
    cases=late("optimized.moe_tiles.reference:cases"),
    sources=SOURCES,
    evidence="tests/servers/test_moe_tiles_on_a_gpu.py::test_a_decode_step_of_a_server_has_hits",
)
