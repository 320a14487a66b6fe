"""Lets the prefix cache of a DFlash or DSpark server drop the last block of a hit, as vLLM did before it had the fix.

The same attributes are held as by the fix, at the values that a scheduler gives them that is built for EAGLE. A cache
that drops takes less out of itself than it could: what is in it stays right, however often this is switched.
"""

from __future__ import annotations

from typing import Any

from optimized.keep_last_block.kept import Held
from optimized.keep_last_block.sources import LOCAL
from optimized.keep_last_block.vllm import INSIDE_BLOCKS, SHARED_PREFIXES, KeptBlocks, exports, unknown

_SPLIT_RULE: dict[str, object] = {
    "use_eagle_block_drop": True,
    # What the workers export lies one block higher here; where a chunk ends at the lower place, none is needed.
    "mamba_has_prefill_checkpoint_blocks": False,
}


class DroppedBlocks(KeptBlocks):
    """The switch; a hit is a lookup that found cached blocks, after the last of them had been dropped."""

    failed = "the cache could not be made to drop blocks"
    lookups = (LOCAL,)
    split_rule = _SPLIT_RULE

    def _refusal(self, scheduler: Any) -> str | None:
        return refusal(scheduler)

    def _change(self, coordinator: Any) -> Held:
        return drop(coordinator)


def refusal(scheduler: Any) -> str | None:
    """Why this scheduler's cache must stay as it is; None where it may drop the last block as it used to."""
    if reason := unknown(scheduler):
        return reason
    cache = scheduler.kv_cache_manager
    coordinator = cache.coordinator
    if coordinator.drop_eagle_group_ids:
        return "blocks are dropped here already"
    if any(getattr(cache, name, False) for name in SHARED_PREFIXES):
        return "Mamba states of shared prefixes are cached by rules of their own"
    if coordinator.enable_partial_hash_hits and any(map(exports, coordinator.single_type_managers)):
        return INSIDE_BLOCKS
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
            if hasattr(manager, "drop_eagle_checkpoint_block") and not exports(manager):
                changes.set(manager, "drop_eagle_checkpoint_block", True)
    except Exception:
        changes.put_back()
        raise
    return changes
