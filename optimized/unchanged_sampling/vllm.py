"""What goes into vLLM's sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from optimized.unchanged_sampling.sources import ADD, PROCESSORS, SAMPLERS, WRITE
from optimized.unchanged_sampling.writes import UnchangedWrites
from spantrace.patching import Function


class UnchangedSampling(UnchangedWrites):
    """The switch; a hit is a step in which nothing was copied."""

    def __init__(self) -> None:
        super().__init__(SAMPLERS, PROCESSORS)

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """Where parameters change, and where they are copied."""
        return {ADD.partition(":")[2]: self.adding, WRITE.partition(":")[2]: self.writing}
