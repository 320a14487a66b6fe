"""Puts the launch in place of the chain behind the projection, whoever projects: stock a layer, a cache all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

from optimized.context_norm_rope.placing import place, why_not, why_not_together
from optimized.optimization import Counts, guarded
from optimized.passes import OLDER
from optimized.reference_cycle.dflash import DFlashDrafter
from spantrace.patching import Function


class OneLaunch:
    """The switch; a hit is a cycle whose context was placed by the kernel.

    A pass is replayed on a GPU without calling the chain, so `context_kv` counts, by what was last said of a drafter:
    the first reason of its layers, where one has any.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._said: WeakKeyDictionary[DFlashDrafter, str | None] = WeakKeyDictionary()
        self._latest: str | None = OLDER
        self._refused: str | None = None
        self._broken: str | None = None

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The chain, and what calls it once a cycle."""
        quiet = partial(guarded, why_not=self._why_not, counts=self.counts, count_hits=False, recover=self._give_up)
        return {"place_context": partial(quiet, fast=place), "DFlashDrafter.context_kv": self._count}

    def allocated(self) -> int:
        """Nothing is held."""
        return 0

    def close(self) -> None:
        """Forget the drafters, and drop the graphs with the kernel."""
        for drafter in self._said:
            drafter.forget_graphs()
        self._said.clear()

    def _count(self, original: Function) -> Function:
        @wraps(original)
        def context_kv(drafter: DFlashDrafter) -> Any:
            self._refused, self._latest = why_not_together(drafter.layers), OLDER
            try:
                result = original(drafter)
            finally:
                self._refused = None
            if self._latest is not OLDER:
                self._said[drafter] = self._latest
            reason = self._said.setdefault(drafter, OLDER)
            if reason is None:
                self.counts.hits += 1
            else:
                self.counts.fallbacks[reason] += 1
            return result

        return context_kv

    def _why_not(self, *given: Any) -> str | None:
        reason = self._broken or self._refused or why_not(*given)
        if self._latest is OLDER or self._latest is None:
            self._latest = reason
        return reason

    def _give_up(self, error: Exception, *_: Any) -> None:
        self._broken = self._latest = f"it failed before ({type(error).__name__})"
