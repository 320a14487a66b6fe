"""Puts the kernel into a DSpark drafter's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from optimized.latents import Cells, finish, why_not
from optimized.optimization import Counts
from optimized.passes import WithinPasses
from optimized.reference_cycle.dspark import DSparkDrafter
from spantrace.patching import Function


class OnePut:
    """The switch; a hit is a block whose layers run the kernel."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._passes = WithinPasses(self.counts, DSparkDrafter)

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """What each layer writes its latents with; the drafting that it is a part of counts."""
        return {
            "DSparkDrafter.put_latents": self._passes.within(put_latents, _why_not),
            "Cycle.propose": self._passes.counted,
        }

    def allocated(self) -> int:
        """It holds nothing."""
        return 0

    def close(self) -> None:
        """Drop the graphs with the kernel."""
        self._passes.close()


def put_latents(drafter: DSparkDrafter, index: int, raw: Tensor, positions: Tensor) -> Tensor:
    """Layer `index`'s latents of raw ones [B, S, Dl], written to the block's cells as well."""
    norms, cells = _of(drafter, index)
    return finish(raw.unsqueeze(-2), positions, norms, drafter.rope, cells).squeeze(-2)


def _why_not(drafter: DSparkDrafter, index: int, raw: Tensor, positions: Tensor) -> str | None:
    norms, cells = _of(drafter, index)
    return why_not(raw.unsqueeze(-2), positions, norms, drafter.rope, cells)


def _of(drafter: DSparkDrafter, index: int) -> tuple[Tensor, Cells]:
    norm = drafter.layers[index].latent_norm.unsqueeze(0)
    return norm, Cells(drafter.pools[index], drafter.block_pages, drafter.block_rows)
