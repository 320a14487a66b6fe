"""Keep the last cached block of a prompt, which vLLM computes anew for drafters whose K/V it cannot have spoilt."""

from __future__ import annotations

from optimized.keep_last_block.kept import METHODS
from optimized.keep_last_block.restored import RESTORED_STOCK
from optimized.keep_last_block.sources import ASK, FIND, LOCAL, SOURCES, SPLIT
from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam

__all__ = ["OPTIMIZATION", "RESTORED_STOCK"]
_EVERYWHERE = "vllm >=0.26,!=0.27.*,<0.33"


OPTIMIZATION = Optimization(
    id="keep-last-block",
    summary="a hit in the prefix cache keeps its last block with DFlash and DSpark, and Mamba states are cached there",
    seed="vLLM, four fixes for DFlash and DSpark, fix 1",
    figure="2,192 tokens more of a 30,000 token prompt cached, first token after 203 instead of 258 ms on a GB200, "
    "claimed there",
    targets=("target.forward",),
    seams=(
        Seam(ASK, "vllm >=0.26,<0.27"),
        Seam(LOCAL, "vllm >=0.28,<0.33"),
        Seam(FIND, _EVERYWHERE),
        Seam(SPLIT, _EVERYWHERE),
    ),
    requirements=(needs_package("vllm"),),
    guard="the method is dflash or dspark, prefixes are cached, and no KV connector looks blocks up by rules of its "
    "own; a hit is one lookup",
    agreement=Agreement.BITWISE,
    memory=lambda _: 0,
    live_switchable=True,
    vllm_switch=late("optimized.keep_last_block.vllm:KeptBlocks"),
    cases=late("optimized.keep_last_block.reference:cases"),
    sources=SOURCES,
    upstream=">=0.33",
    methods=METHODS,
    evidence="tests/servers/test_keep_last_block.py::test_a_repeated_prompt_hits_exactly_one_block_more",
)
