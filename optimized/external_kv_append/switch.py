"""Puts the kernel where a DFlash drafter's layers attend, whatever their context's keys and values are kept in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from optimized.external_kv_append import attention
from optimized.external_kv_append.attention import Block, Cells, Pools, Sight
from optimized.optimization import Counts
from optimized.passes import WithinPasses
from optimized.reference_cycle.dflash import DFlashDrafter
from spantrace.patching import Function


class BySlot:
    """The switch; a hit is a cycle whose block attended by slot."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._passes = WithinPasses(self.counts, DFlashDrafter)

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The attention within a pass, and what every cycle calls after it."""
        return {
            "DFlashDrafter.attend_to": self._passes.within(attend_to, why_not),
            "Cycle.emit": self._passes.counted,
        }

    def allocated(self) -> int:
        """Nothing is held."""
        return 0

    def close(self) -> None:
        """Drop the graphs that hold the kernel."""
        self._passes.close()


def attend_to(
    drafter: DFlashDrafter,
    index: int,
    block: Block,
    pools: Pools,
    cells: Cells,
    mask: Tensor,
    seats: Tensor | None = None,
) -> Tensor:
    """The attention of layer `index`; neither the mask nor the order of the rows is needed."""
    layer = drafter.layers[index]
    return attention.append_outside(block, pools, cells, Sight(layer.window or 0, layer.causal, layer.sinks))


def why_not(drafter: DFlashDrafter, index: int, block: Block, pools: Pools, cells: Cells, *_: object) -> str | None:
    """Why that layer attends otherwise."""
    return attention.why_not(block, pools, cells)
