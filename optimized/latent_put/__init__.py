"""Write a block's latents to their pages in the kernel that norms and rotates them."""

from __future__ import annotations

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels, needs_package
from optimized.seams import Seam

_CYCLE = "optimized.reference_cycle"


OPTIMIZATION = Optimization(
    id="latent-put",
    summary="each MLA layer's norm and RoPE of the block's latents also writes them to their pages, in one kernel",
    seed="TensorRT-LLM issue 20548",
    figure="a write of its own in each layer falls away; 0.19 to 0.22 ms a step on Rubin with the issue's others",
    targets=("draft.forward",),
    seams=tuple(Seam(f"{_CYCLE}.{method}") for method in ("dspark:DSparkDrafter.put_latents", "cycle:Cycle.propose")),
    requirements=(needs_package("torch"), needs_kernels()),
    guard="dense latents and pools of one dtype, a normed part of 4 to 1024 numbers, a power of two, and whole pairs",
    agreement=Agreement.PINNED,
    proven="torch 2.11.0 with triton 3.6.0 on an H200, where the order of its arithmetic was found",
    memory=lambda settings: 0,
    live_switchable=True,
    switch=late("optimized.latent_put.switch:OnePut"),
    cases=late("optimized.latent_put.reference:cases"),
    contest=late("optimized.latent_put.contest:contest"),
    drafters=("dspark",),
    named_set="dspark-bookkeeping",
)
