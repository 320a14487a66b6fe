"""Draft a DSpark block's tokens in one kernel a step: the bias of the token before, the sum and the best of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.markov_chain.sources import REPLAY, SAMPLE, SOURCES
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_WHERE = "vllm >=0.26,!=0.27.*,<0.34"
_DRAFTER = "optimized.reference_cycle.dspark:DSparkDrafter."


def _memory(settings: Settings) -> int:
    """The best key of each step and request, int64."""
    return 8 * settings.batch * settings.speculative if settings.drafter == "dspark" else 0


OPTIMIZATION = Optimization(
    id="markov-chain",
    summary="a DSpark block's tokens in one kernel a step: the bias of the token before, the sum and its best",
    seed="DSpark's Markov head, as vLLM 0.33 fuses it for one model on MI325X",
    figure="about 9 kernels a step, 220 us a cycle for 5 steps on an MI325X, stated there for the loop",
    targets=("draft.forward",),
    seams=(Seam(_DRAFTER + "refine"), Seam(_DRAFTER + "forward"), Seam(SAMPLE, _WHERE), Seam(REPLAY, _WHERE)),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="logits and Markov head are of one type, float32 or shorter, of a rank up to 512, and drafts are greedy",
    agreement=Agreement.TOLERANT,
    memory=_memory,
    live_switchable=False,
    switch=late("optimized.markov_chain.switch:MarkovChain"),
    vllm_switch=late("optimized.markov_chain.vllm:DrafterChain"),
    cases=late("optimized.markov_chain.reference:cases"),
    sources=SOURCES,
    methods=("dspark",),
    contest=late("optimized.markov_chain.contest:contest"),
    drafters=("dspark",),
)
