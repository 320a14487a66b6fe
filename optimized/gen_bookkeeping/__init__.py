"""Write the verified rows' latents and advance the contexts in one kernel behind the projection.

The seed has two kernels around the projection, because what is written is a product of it. The one in front builds the
block's inputs and positions from the verdict, which both drafters need: here that is `query-build`, an optimization
of its own in the same set. This is the one behind. It reads each context's length before the step from the positions
that the one in front left, not from the lengths, which it advances itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_DRAFTER = "optimized.reference_cycle.dspark:DSparkDrafter"


def _memory(settings: Settings) -> int:
    """The address of each layer's pool, int64."""
    return 8 * settings.geometry.dspark.layers if settings.drafter == "dspark" else 0


OPTIMIZATION = Optimization(
    id="gen-bookkeeping",
    summary="one kernel writes the verified rows' latents to all layers' pages and advances the drafter's contexts",
    seed="TensorRT-LLM issue 20548",
    figure="51 operations become two kernels, of which this is one; 0.19 to 0.22 ms a step with the issue's others",
    targets=("draft.context_kv",),
    seams=tuple(Seam(f"{_DRAFTER}.{method}") for method in ("keep_latents", "advance")),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="dense latents and pools of one dtype of at most 4 bytes, and pages of one size",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.gen_bookkeeping.switch:OnePost"),
    cases=late("optimized.gen_bookkeeping.reference:cases"),
    contest=late("optimized.gen_bookkeeping.contest:contest"),
    drafters=("dspark",),
    named_set="dspark-bookkeeping",
)
