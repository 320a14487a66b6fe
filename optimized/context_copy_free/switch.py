"""Puts the kernel behind a DSpark drafter's stacked projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.latents import finish, why_not
from optimized.optimization import Counts
from optimized.passes import WithinPasses
from optimized.reference_cycle.dspark import DSparkDrafter
from spantrace.patching import Function


class OneLaunch:
    """The switch; a hit is a cycle whose verified rows went through the kernel. Prompts do too, and do not count."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._passes = WithinPasses(self.counts, DSparkDrafter)
        self._norms: WeakKeyDictionary[DSparkDrafter, Tensor] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """What follows the projection; the drafting that holds it counts."""
        return {
            "DSparkDrafter.finish_latents": self._passes.within(self.finish_latents, self._why_not, _of_a_cycle),
            "DSparkDrafter.propose": self._passes.counted,
        }

    def allocated(self) -> int:
        """Bytes of all drafters' stacked norms."""
        return sum(norms.nbytes for norms in self._norms.values())

    def close(self) -> None:
        """Drop the graphs with the kernel, and the norms."""
        self._passes.close()
        self._norms.clear()

    def finish_latents(self, drafter: DSparkDrafter, raw: Tensor, positions: Tensor) -> Tensor:
        """Latents of raw ones [..., layers, Dl], as the drafter's own method would make them."""
        return finish(raw, positions, self.norms_of(drafter), drafter.rope)

    def norms_of(self, drafter: DSparkDrafter) -> Tensor:
        """The norms of the drafter's layers, [layers, latent]."""
        if drafter not in self._norms:
            self._norms[drafter] = torch.stack([layer.latent_norm for layer in drafter.layers])
        return self._norms[drafter]

    def _why_not(self, drafter: DSparkDrafter, raw: Tensor, positions: Tensor) -> str | None:
        return why_not(raw, positions, self.norms_of(drafter), drafter.rope)


def _of_a_cycle(drafter: DSparkDrafter, raw: Tensor, positions: Tensor) -> bool:
    """Verified rows come by request, a prompt's tokens do not."""
    return bool(raw.dim() == 4)
