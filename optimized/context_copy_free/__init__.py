"""Norm and rotate the latents of all layers where the projection left them, in one launch and without copies.

The arithmetic is that of `latent-put`, by the same kernel, `optimized.latent_kernels`; only the strides differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import ITEM_BYTES, Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

_DRAFTER = "optimized.reference_cycle.dspark:DSparkDrafter"


def _memory(settings: Settings) -> int:
    """The norms of all layers, stacked."""
    shape = settings.geometry.dspark
    return shape.layers * shape.latent * ITEM_BYTES[settings.dtype] if settings.drafter == "dspark" else 0


OPTIMIZATION = Optimization(
    id="context-copy-free",
    summary="one launch over tokens and layers norms and rotates the context's latents, without a copy for each layer",
    seed="TensorRT-LLM issue 20548",
    figure="two copies in each layer fall away; 0.19 to 0.22 ms a step on Rubin with the issue's others, claimed there",
    targets=("draft.context_kv",),
    seams=tuple(Seam(f"{_DRAFTER}.{method}") for method in ("finish_latents", "propose")),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="dense latents of one dtype, a normed part of 4 to 1024 numbers, a power of two, and whole pairs",
    agreement=Agreement.PINNED,
    proven="torch 2.11.0 with triton 3.6.0 on an H200, where the order of its arithmetic was found",
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.context_copy_free.switch:OneLaunch"),
    cases=late("optimized.context_copy_free.reference:cases"),
    contest=late("optimized.context_copy_free.contest:contest"),
    drafters=("dspark",),
    named_set="dspark-bookkeeping",
)
