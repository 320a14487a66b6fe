"""Promote the states after the last accepted token, of all layers with a state, in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_kernels
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings


def _memory(settings: Settings) -> int:
    """Four addresses a layer; the mark of a broken rule is in the memory of the host."""
    layers = len(settings.geometry.state_layers)
    return 32 * layers + (4 if settings.device == "cpu" else 0) if layers else 0


OPTIMIZATION = Optimization(
    id="state-commit",
    summary="the states after the last accepted token are promoted for all layers in one launch",
    seed="TensorRT-LLM PR 18553",
    figure="+0.87% throughput from promoting all layers at once, claimed there",
    targets=("postprocess",),
    seams=(Seam("optimized.reference_cycle.target:Target.commit_states"),),
    requirements=(needs_kernels(),),
    guard="layers with states of one shape and layout; every row accepts at least one, and no two are in one slot",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    switch=late("optimized.state_commit.promotion:OneLaunch"),
    cases=late("optimized.state_commit.reference:cases"),
    contest=late("optimized.state_commit.contest:contest"),
    needs_states=True,
)
