"""What goes into vLLM's runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from optimized.target_groups_only.groups import TargetGroups
from optimized.target_groups_only.sources import DRAFTERS, STATES, STEP
from spantrace.patching import Function


class TargetGroupsOnly(TargetGroups):
    """The switch; a hit is a step of the target that left a group out."""

    def __init__(self) -> None:
        super().__init__(STATES, DRAFTERS)

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """Where a step's metadata is about to be built."""
        return {STEP.partition(":")[2]: self.stepping}
