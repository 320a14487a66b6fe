"""Mask the verified rows and store them in one pass, by multiplying as they are stored.

The mask is applied to the projected states, of which keys and values are made: a row of zeros projects to zeros and a
norm leaves them zeros, so what is placed by context-norm-rope needs no mask, and the two share no seam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_DRAFTER = "optimized.reference_cycle.dflash:DFlashDrafter"


def _memory(settings: Settings) -> int:
    """Nothing: it writes where the chain would have written."""
    return 0


OPTIMIZATION = Optimization(
    id="masked-scatter",
    summary="the verified rows are multiplied by their mask as they are stored, positions and limit included",
    seed="TensorRT-LLM PR 13995",
    figure="a multiplication in place saves an allocation there; no figure of its own is claimed",
    targets=("draft.context_kv",),
    seams=tuple(Seam(f"{_DRAFTER}.{method}") for method in ("store_accepted", "propose")),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="dense states of 16 or 32 bits a number, stored as they are",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.masked_scatter.switch:OneStore"),
    cases=late("optimized.masked_scatter.reference:cases"),
    contest=late("optimized.masked_scatter.contest:contest"),
    drafters=("dflash",),
)
