"""Project the verified rows for the drafter's context on a second stream, while it is still being decided what stands.

The projection needs the captured taps and the contexts' lengths before the step, and nothing of acceptance: it forks
off behind the target's pass, and joins before the rows that stand are written.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import ITEM_BYTES, Agreement, Optimization, Requirement
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings

MOST_TOKENS = 256
"""Verified rows of a batch; more of them keep a GPU busy by themselves, and side by side would only share it."""
_DRAFTER = "optimized.reference_cycle.drafter:Drafter"


def _no_gpu() -> str | None:
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "a CPU has no second stream, and PyTorch finds no CUDA device"


def _no_gpu_is_asked_for(device: str) -> str | None:
    return _no_gpu() if device.startswith("cuda") else "a CPU has no second stream"


def _memory(settings: Settings) -> int:
    """The projected rows; cuBLAS takes a workspace for the stream besides, once a process and for good."""
    tokens = settings.batch * (settings.speculative + 1)
    if settings.drafter == "none" or tokens > MOST_TOKENS or not settings.device.startswith("cuda"):
        return 0
    shape = settings.geometry.dspark
    latents = shape.layers * (shape.latent + shape.rope_dim)
    return tokens * (latents if settings.drafter == "dspark" else settings.geometry.hidden) * ITEM_BYTES[settings.dtype]


OPTIMIZATION = Optimization(
    id="aux-stream-context",
    summary="the verified rows are projected for the context on a second stream, beside sampling and accepting",
    seed="TensorRT-LLM issue 20548",
    figure="-0.186 to -0.224 ms a step with the issue's kernels, claimed there; no figure of its own is claimed",
    targets=("draft.context_kv",),
    seams=tuple(Seam(f"{_DRAFTER}.{method}") for method in ("observe", "context_rows", "extend_context")),
    requirements=(Requirement("PyTorch finds a CUDA device", _no_gpu, _no_gpu_is_asked_for),),
    guard=f"a GPU, at most {MOST_TOKENS} verified rows, fork and join in one capture, and no other writer in between",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.aux_stream_context.switch:AuxStream"),
    cases=late("optimized.aux_stream_context.reference:cases"),
    contest=late("optimized.aux_stream_context.contest:contest"),
    evidence="examples/results/h200-aux-stream.spantrace",
    named_set="dspark-aux-stream",
)
