"""Write the block's keys and values outside the attention kernel, which finds a request's context by its slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_CYCLE = "optimized.reference_cycle"


def _memory(settings: Settings) -> int:
    """Nothing is kept."""
    return 0


OPTIMIZATION = Optimization(
    id="external-kv-append",
    summary="the block's keys and values are written by a copy, and a kernel attends to them and the context by slot",
    seed="TensorRT-LLM PR 18553",
    figure="+62% tokens/s (Qwen3.5-4B) by no longer appending within the attention kernel, claimed there",
    targets=("draft.forward",),
    seams=(Seam(f"{_CYCLE}.dflash:DFlashDrafter.attend_to"), Seam(f"{_CYCLE}.cycle:Cycle.emit")),
    requirements=(needs_kernels(),),
    guard="queries, keys and values in one of float32, float16 and bfloat16, shared out evenly; dense int64 cells",
    agreement=Agreement.TOLERANT,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.external_kv_append.switch:BySlot"),
    cases=late("optimized.external_kv_append.reference:cases"),
    contest=late("optimized.external_kv_append.contest:contest"),
    drafters=("dflash",),
)
