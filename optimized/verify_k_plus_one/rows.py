"""The number of rows that the target verifies; its buffers and graphs follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakSet

from optimized.optimization import Counts, guarded
from optimized.reference_cycle.target import Rows, Target
from spantrace.patching import Function


def rows_per_request(target: Target) -> int:
    """K + 1: the newest token and each draft. The rows behind them are causal successors, so they decide nothing."""
    return target.settings.speculative + 1


def why_not(target: Target) -> str | None:
    """Why this target keeps its rows."""
    drafts = target.settings.speculative
    if drafts == 0:
        return "nothing is drafted"
    return "with K = 1 there is no filler to leave out" if drafts == 1 else None


class FewerRows:
    """The switch; a hit is a cycle, which asks for the number of rows once."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._targets: WeakSet[Target] = WeakSet()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""
        return {"Target.rows_per_request": partial(guarded, fast=self._rows, why_not=why_not, counts=self.counts)}

    def allocated(self) -> int:
        """Bytes of the input buffers for K + 1 rows of all targets that asked."""
        buffers = (target.prepared().get(rows_per_request(target)) for target in self._targets)
        return sum(_bytes(found) for found in buffers if found)

    def close(self) -> None:
        """Drop the buffers and graphs for K + 1 rows."""
        for target in self._targets:
            target.release(rows_per_request(target))
        self._targets.clear()

    def _rows(self, target: Target) -> int:
        self._targets.add(target)
        return rows_per_request(target)


def _bytes(rows: Rows) -> int:
    tensors = (rows.tokens, rows.positions, rows.slots, rows.table, *rows.cells, rows.mask)
    return sum(tensor.nbytes for tensor in tensors)
