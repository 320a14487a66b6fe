"""Puts the store into a DFlash drafter; whatever makes keys and values of what is stored is left alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from optimized.masked_scatter import storing
from optimized.masked_scatter.storing import Memory
from optimized.optimization import Counts
from optimized.passes import WithinPasses
from optimized.reference_cycle.dflash import DFlashDrafter
from spantrace.patching import Function


class OneStore:
    """The switch; a hit is a cycle whose rows were stored by the kernel."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._passes = WithinPasses(self.counts, DFlashDrafter)

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The store, and the proposal that its pass is a part of."""
        return {
            "DFlashDrafter.store_accepted": self._passes.within(store_accepted, why_not),
            "DFlashDrafter.propose": self._passes.counted,
        }

    def allocated(self) -> int:
        """Nothing is held."""
        return 0

    def close(self) -> None:
        """Drop the graphs with the kernel."""
        self._passes.close()


def store_accepted(drafter: DFlashDrafter, states: Tensor) -> None:
    """Store states [B, K + 1, hidden] and their positions, as the drafter's own method does."""
    storing.store(states, *_rest(drafter))


def why_not(drafter: DFlashDrafter, states: Tensor) -> str | None:
    """Why this drafter's rows are stored otherwise."""
    return storing.why_not(states, *_rest(drafter))


def _rest(drafter: DFlashDrafter) -> tuple[Tensor, Tensor, Tensor, Memory]:
    """Where the rows stand, how many of them, whose they are, and where they are kept."""
    queries = drafter.queries
    kept = Memory(drafter.projected, drafter.stored_positions)
    return queries.context_positions, queries.counts, drafter.slots, kept
