"""Puts the kernel into a DSpark drafter's context pass, and leaves nothing to do for the step behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from weakref import WeakKeyDictionary

from torch import Tensor

from optimized.gen_bookkeeping import post
from optimized.gen_bookkeeping.post import Contexts, Pages
from optimized.optimization import Counts
from optimized.passes import WithinPasses
from optimized.reference_cycle.dspark import DSparkDrafter
from spantrace.patching import Function


class OnePost:
    """The switch; a hit is a cycle whose context pass holds the kernel, which has advanced the contexts too."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._passes = WithinPasses(self.counts, DSparkDrafter)
        self._pages: WeakKeyDictionary[DSparkDrafter, Pages] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """What the context pass writes with, and the advance that follows it."""
        return {
            "DSparkDrafter.keep_latents": self._passes.within(self.keep_latents, self.why_not),
            "DSparkDrafter.advance": self._advance,
        }

    def allocated(self) -> int:
        """Bytes of all drafters' addresses."""
        return sum(pages.addresses.nbytes for pages in self._pages.values())

    def close(self) -> None:
        """Drop the graphs with the kernel, and the addresses."""
        self._passes.close()
        self._pages.clear()

    def why_not(self, drafter: DSparkDrafter, latents: Tensor) -> str | None:
        """Why this drafter's latents are not taken."""
        queries = drafter.queries
        return post.why_not(
            latents, queries.context_positions, queries.counts, self.pages_of(drafter), contexts_of(drafter)
        )

    def keep_latents(self, drafter: DSparkDrafter, latents: Tensor) -> None:
        """Write them and advance the contexts."""
        queries = drafter.queries
        pages, contexts = self.pages_of(drafter), contexts_of(drafter)
        post.keep(latents, queries.context_positions, queries.counts, pages, contexts, drafter.block)

    def pages_of(self, drafter: DSparkDrafter) -> Pages:
        """The drafter's pages; the addresses of its pools are looked up once."""
        if drafter not in self._pages:
            self._pages[drafter] = Pages.of(drafter.table, drafter.page_counts, drafter.pools)
        return self._pages[drafter]

    def _advance(self, original: Function) -> Function:
        @wraps(original)
        def advance(drafter: DSparkDrafter) -> None:
            if self._passes.why_stock(drafter) is not None:
                original(drafter)

        return self._passes.counted(advance)


def contexts_of(drafter: DSparkDrafter) -> Contexts:
    """The drafter's contexts."""
    longest = drafter.settings.draft_context
    return Contexts(drafter.context_lengths, drafter.slots, drafter.visible_context, longest)
