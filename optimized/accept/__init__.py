"""Read the target's tokens off the logits and decide how many drafts stand, in two launches of Triton kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.launching import why_no_kernels
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings


def _memory(settings: Settings) -> int:
    """The verdict, and each tile's best token."""
    if settings.drafter == "none" or why_no_kernels(settings.device) is not None:
        return 0
    from optimized.accept.accepting import buffer_bytes

    return buffer_bytes(settings.batch, settings.speculative + 1, settings.geometry.vocab)


OPTIMIZATION = Optimization(
    id="accept",
    summary="the target's tokens, what stands of the drafts and each newest token in two launches, not nine",
    seed="beside TensorRT-LLM issue 20548",
    figure="it is not in the issue, and no figure is claimed",
    targets=("sample", "postprocess"),
    seams=(Seam("optimized.reference_cycle.acceptance:Verifier.accept"),),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="drafts of int64, logits of a floating type whose words lie side by side, and a device that runs kernels",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.accept.switch:Accepting"),
    cases=late("optimized.accept.reference:cases"),
    contest=late("optimized.accept.contest:contest"),
)
