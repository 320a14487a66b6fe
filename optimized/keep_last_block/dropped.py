"""Lets the prefix cache of a DFlash or DSpark server drop the last block of a hit, as vLLM did before it had the fix.

The same attributes are held as by the fix, at the values that a scheduler gives them that is built for EAGLE. A cache
that drops takes less out of itself than it could: what is in it stays right, however often this is switched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from optimized.keep_last_block.kept import Held, held, why_not
from optimized.keep_last_block.sources import FIND, LOCAL, SPLIT
from optimized.keep_last_block.vllm import KeptBlocks
from spantrace.patching import Function

FAILED = "the cache could not be made to drop blocks"
_COORDINATORS = ("UnitaryKVCacheCoordinator", "HybridKVCacheCoordinator")
_RULES_OF_ITS_OWN = ("mamba_shared_prefix_checkpoint", "mamba_fine_grained_prefix_cache")
_SPLIT_RULE: dict[str, object] = {
    "use_eagle_block_drop": True,
    # What the workers export lies one block higher here; where a chunk ends at the lower place, none is needed.
    "mamba_has_prefill_checkpoint_blocks": False,
}


class DroppedBlocks(KeptBlocks):
    """The switch; a hit is a lookup that found cached blocks, after the last of them had been dropped."""

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """Before a lookup, the lookup itself, and where a prefill is split."""
        wraps_of = {LOCAL: self._before, FIND: self._find, SPLIT: self._split}
        return {owner.partition(":")[2]: wrap for owner, wrap in wraps_of.items()}

    def _split(self, original: Function) -> Function:
        @wraps(original)
        def call(scheduler: Any, *args: Any, **named: Any) -> Any:
            if not self._keeps(scheduler):
                return original(scheduler, *args, **named)
            with held(scheduler, **_SPLIT_RULE):
                return original(scheduler, *args, **named)

        return call

    def _decide(self, scheduler: Any, cache: Any) -> None:
        """Once for each cache; where that fails the cache is left alone from then on."""
        self._refusals[cache] = FAILED
        reason = refusal(scheduler)
        if reason is None:
            self._held[cache] = drop(cache.coordinator)
        self._refusals[cache] = reason


def refusal(scheduler: Any) -> str | None:
    """Why this scheduler's cache must stay as it is; None where it may drop the last block as it used to."""
    speculation, cache = scheduler.vllm_config.speculative_config, scheduler.kv_cache_manager
    coordinator = cache.coordinator
    if (reason := why_not(None if speculation is None else speculation.method)) is not None:
        return reason
    if not cache.enable_caching:
        return "prefix caching is off"
    if scheduler.connector is not None:
        return "a KV connector looks blocks up by rules of its own"
    if type(coordinator).__name__ not in _COORDINATORS:
        return f"{type(coordinator).__name__} is not known"
    if coordinator.drop_eagle_group_ids:
        return "blocks are dropped here already"
    if any(getattr(cache, name, False) for name in _RULES_OF_ITS_OWN):
        return "Mamba states of shared prefixes are cached by rules of their own"
    if coordinator.enable_partial_hash_hits and any(map(_exports, coordinator.single_type_managers)):
        return "Mamba states are cached inside blocks by rules that the workers share"
    return None


def drop(coordinator: Any) -> Held:
    """Make a coordinator and its managers drop the last block of every group; all of it or nothing."""
    changes, managers = Held(), coordinator.single_type_managers
    dropping = set(coordinator.eagle_group_ids or range(len(managers)))
    try:
        changes.set(coordinator, "eagle_group_ids", dropping)
        changes.set(coordinator, "drop_eagle_group_ids", dropping)
        groups = getattr(coordinator, "attention_groups", None)
        if groups is not None:
            flagged = [group._replace(use_eagle=not dropping.isdisjoint(group.group_ids)) for group in groups]
            changes.set(coordinator, "attention_groups", flagged)
            dropping = {index for group in flagged if group.use_eagle for index in group.group_ids}
        for index in sorted(dropping):
            changes.set(managers[index], "use_eagle", True)
        for manager in managers:
            # Where the workers export states from inside a prefill, both sides go on agreeing on the place.
            if hasattr(manager, "drop_eagle_checkpoint_block") and not _exports(manager):
                changes.set(manager, "drop_eagle_checkpoint_block", True)
    except Exception:
        changes.put_back()
        raise
    return changes


def _exports(manager: Any) -> bool:
    return bool(getattr(manager, "has_prefill_checkpoint_blocks", False))
