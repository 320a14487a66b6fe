"""Puts a cache beside each DFlash drafter; the drafter's projected states are kept up, so it can be taken off again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.context_kv_cache import cache
from optimized.context_kv_cache.cache import Cache
from optimized.optimization import Counts, guarded
from optimized.passes import OLDER
from optimized.reference_cycle.dflash import DFlashDrafter
from spantrace.patching import Function


@dataclass
class Beside:
    """What the switch knows of one drafter: its cache if it has one yet, whether cycles write to it, and why it goes
    without for good."""

    cache: Cache | None
    written: bool
    refused: str | None


class ContextCaches:
    """The switch; a hit is a cycle whose verified rows went into the cache.

    The stock `remember` stays: it stores the rows' projected states, and where it makes the whole context's keys and
    values of them, `recompute`, the cache takes those rows alone. A drafter met in the middle of its work gets a
    cache made of all that it has stored.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._beside: WeakKeyDictionary[DFlashDrafter, Beside] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """Recompute writes and attend reads; admission and advance keep the cache in step.

        The passes of recompute and attend are replayed on a GPU without being called, so advance counts the hits.
        """
        quiet = partial(guarded, why_not=self.why_not, counts=self.counts, count_hits=False, recover=self._give_up)
        return {
            "DFlashDrafter.recompute": partial(quiet, fast=self.recompute),
            "DFlashDrafter.remember_prompt": self._after(self.remember_prompt),
            "DFlashDrafter.advance": self._after(self.seat, counted=True),
            "DFlashDrafter.attend": partial(quiet, fast=self.attend, why_not=self._why_not_read),
        }

    def allocated(self) -> int:
        """Bytes of all caches."""
        return sum(beside.cache.nbytes() for beside in self._beside.values() if beside.cache)

    def close(self) -> None:
        """Drop the caches, and the graphs that read them."""
        for drafter in self._beside:
            drafter.forget_graphs()
        self._beside.clear()

    def why_not(self, drafter: DFlashDrafter, *_: Any) -> str | None:
        """Why this drafter goes without a cache."""
        return self._of(drafter).refused

    def recompute(self, drafter: DFlashDrafter) -> None:
        """Keys and values of the rows just stored, from where they were stored."""
        longest, held = drafter.settings.draft_context, self.cache_of(drafter)
        slots = drafter.slots.unsqueeze(1).expand_as(drafter.queries.context_positions)
        columns = drafter.queries.context_positions.clamp(max=longest - 1)
        states, positions = drafter.projected[slots, columns], drafter.stored_positions[slots, columns]
        held.write(slots, columns, states, positions)
        self._of(drafter).written = True

    def remember_prompt(self, drafter: DFlashDrafter, row: int, slot: int, taps: Tensor) -> None:
        """Keys and values of a prompt, after its states were stored."""
        positions = torch.arange(len(taps), device=taps.device)
        slots = torch.full_like(positions, slot)
        self.cache_of(drafter).write(slots, positions, drafter.projected[slot, : len(taps)], positions)

    def seat(self, drafter: DFlashDrafter) -> None:
        """Learn which slots the batch's rows are in and how long their contexts have become."""
        self.cache_of(drafter).seat(drafter.slots, drafter.visible_context, drafter.block)

    def attend(self, drafter: DFlashDrafter, index: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The block's attention in layer `index`, on the cache."""
        layer, cells = drafter.layers[index], (drafter.slots, drafter.block_columns)
        mask = drafter.masks[layer.window, layer.causal]
        return self.cache_of(drafter).attend(drafter, index, (queries, keys, values), cells, mask)

    def cache_of(self, drafter: DFlashDrafter) -> Cache:
        """The drafter's cache, made of everything that it has stored where it had none yet."""
        beside = self._of(drafter)
        if beside.cache is None:
            beside.cache = Cache.create(drafter.layers, len(drafter.projected), drafter.keys.shape[2])
            for slot, (states, positions) in enumerate(zip(drafter.projected, drafter.stored_positions, strict=True)):
                columns = torch.arange(len(states), device=states.device)
                beside.cache.write(torch.full_like(columns, slot), columns, states, positions)
        return beside.cache

    def _of(self, drafter: DFlashDrafter) -> Beside:
        if drafter not in self._beside:
            self._beside[drafter] = Beside(None, False, cache.why_not(drafter.layers, drafter.keys.shape[2]))
        return self._beside[drafter]

    def _why_not_read(self, drafter: DFlashDrafter, *_: Any) -> str | None:
        beside = self._of(drafter)
        return beside.refused or (None if beside.written else OLDER)

    def _give_up(self, error: Exception, drafter: DFlashDrafter, *_: Any) -> None:
        """Go without from now on; the stock columns are made again, for whoever reads them in this cycle."""
        self._of(drafter).refused = f"it failed before ({type(error).__name__})"
        drafter.recompute()

    def _after(self, follow: Callable[..., None], counted: bool = False) -> Callable[[Function], Function]:
        """A wrapper that calls the original, and then `follow` on the same arguments where the guard allows."""

        def wrap(original: Function) -> Function:
            followed = guarded(lambda *_: None, follow, self._guard(counted), self.counts, counted, self._give_up)

            @wraps(original)
            def call(drafter: DFlashDrafter, *args: Any) -> Any:
                result = original(drafter, *args)
                followed(drafter, *args)
                return result

            return call

        return wrap

    def _guard(self, counted: bool) -> Callable[..., str | None]:
        return self._why_not_read if counted else self.why_not
