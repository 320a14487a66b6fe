"""The chain in the place of a DSpark drafter's own loop; a captured pass keeps whichever it was captured with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.markov_chain import chain
from optimized.markov_chain.chain import Chosen, Head
from optimized.optimization import Counts
from optimized.passes import WithinPasses
from optimized.reference_cycle.dspark import DSparkDrafter
from spantrace.patching import Function


class MarkovChain:
    """The switch; a hit is a cycle whose tokens the chain chose."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._passes = WithinPasses(self.counts, DSparkDrafter)
        self._keys: WeakKeyDictionary[DSparkDrafter, Tensor] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The loop, which is in the block's pass, and what calls or replays that."""
        return {
            "DSparkDrafter.refine": self._passes.within(self.refine, why_not),
            "DSparkDrafter.forward": self._passes.counted,
        }

    def allocated(self) -> int:
        """Bytes of all drafters' keys."""
        return sum(keys.nbytes for keys in self._keys.values())

    def close(self) -> None:
        """Drop the keys, and the graphs that write them."""
        self._passes.close()
        self._keys.clear()

    def refine(self, drafter: DSparkDrafter, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, K] and refined logits, as the drafter's own method gives them."""
        batch, steps, _ = logits.shape
        if drafter not in self._keys:
            self._keys[drafter] = chain.empty_keys(steps, batch, logits.device)
        tokens = torch.empty(batch, steps, dtype=torch.int64, device=logits.device)
        refined = torch.empty_like(logits)
        chain.draft(logits, drafter.queries.bonus, head_of(drafter), self._keys[drafter], Chosen(tokens, refined))
        return tokens, refined


def why_not(drafter: DSparkDrafter, logits: Tensor) -> str | None:
    """Why this drafter's loop is left as it is."""
    return chain.why_not(logits, head_of(drafter))


def head_of(drafter: DSparkDrafter) -> Head:
    """The drafter's Markov head."""
    return Head(drafter.markov_in, drafter.markov_out)
