"""What goes into vLLM's drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from optimized.bounded_padding.padding import Padding
from spantrace.patching import Function


class BoundedPadding(Padding):
    """The switch; a hit is one call, of which a drafter makes one a step for each of its KV groups."""

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """Beside the call, all else that writes to what it pads: captures, new tables, and sleep, which loses them."""
        return {
            "prepare_dflash_inputs": self.preparing,
            "_prepare_dflash_inputs_to_capture": self.forgetting,
            "CudaGraphManager.needs_capture": self.forgetting,
            "GPUModelRunner.initialize_kv_cache": self.forgetting,
            "Worker.wake_up": self.forgetting,
        }
