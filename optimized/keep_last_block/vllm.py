"""Lets the prefix cache of a DFlash or DSpark server keep the last block of a hit, and its Mamba states end there.

The scheduler's cache manager was built to drop it. Which groups of layers do so is written in its coordinator and its
managers, where it is read at each lookup and each time that blocks are cached, and nowhere else: these attributes are
held at another value from the first lookup on and put back when the switch is taken off. The scheduler itself asks
whether the method is one of EAGLE's for other ends too, so that its attribute is held for the length of one call only.
All of this happens on the engine's thread, between or within its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from optimized.keep_last_block.kept import Held, held, why_not
from optimized.keep_last_block.sources import ASK, FIND, LOCAL, SPLIT
from optimized.optimization import Counts
from spantrace.patching import Function

NOTHING_CACHED, FAILED = "no block of the prompt is cached", "the cache could not be made to keep blocks"
INSIDE_BLOCKS = "Mamba states are cached inside blocks by rules that the workers share"
SHARED_PREFIXES = ("mamba_shared_prefix_checkpoint", "mamba_fine_grained_prefix_cache")
"""What a cache manager has on where Mamba states of shared prefixes are cached by rules of their own."""
_SPLIT_RULE: dict[str, object] = {
    "use_eagle": False,
    "use_eagle_block_drop": False,
    # What the workers export from inside a prefill lies one block lower; where a chunk ends, its state is cached too.
    "mamba_has_prefill_checkpoint_blocks": False,
}


class KeptBlocks:
    """The switch; a hit is a lookup that found cached blocks and kept the last of them."""

    failed = FAILED
    lookups: tuple[str, ...] = (ASK, LOCAL)
    split_rule: Mapping[str, object] = _SPLIT_RULE

    def __init__(self) -> None:
        self.counts = Counts()
        self._refusals: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
        self._held: WeakKeyDictionary[Any, Held] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """Before a lookup, which differs between versions, the lookup itself, and where a prefill is split."""
        wraps_of = {**dict.fromkeys(self.lookups, self._before), FIND: self._find, SPLIT: self._split}
        return {owner.partition(":")[2]: wrap for owner, wrap in wraps_of.items()}

    def allocated(self) -> int:
        """No bytes."""
        return 0

    def close(self) -> None:
        """Let every cache drop blocks as before."""
        for changes in self._held.values():
            changes.put_back()
        self._held.clear()
        self._refusals.clear()

    def _before(self, original: Function) -> Function:
        @wraps(original)
        def call(*args: Any, **named: Any) -> Any:
            self._keeps(_owner(args, named))
            return original(*args, **named)

        return call

    def _find(self, original: Function) -> Function:
        @wraps(original)
        def call(*args: Any, **named: Any) -> Any:
            found = original(*args, **named)
            self._count(_owner(args, named), found)
            return found

        return call

    def _split(self, original: Function) -> Function:
        @wraps(original)
        def call(*args: Any, **named: Any) -> Any:
            scheduler = _owner(args, named)
            if not self._keeps(scheduler):
                return original(*args, **named)
            with held(scheduler, **self.split_rule):
                return original(*args, **named)

        return call

    def _keeps(self, scheduler: Any) -> bool:
        """Whether this scheduler's cache drops nothing now; made so where it may be."""
        try:
            cache = scheduler.kv_cache_manager
            if cache not in self._refusals:
                self._decide(scheduler, cache)
            return self._refusals[cache] is None
        except Exception as error:
            self.counts.failed(error)
            return False

    def _decide(self, scheduler: Any, cache: Any) -> None:
        """Once for each cache; where that fails the cache is left alone from then on."""
        self._refusals[cache] = self.failed
        reason = self._refusal(scheduler)
        if reason is None:
            self._held[cache] = self._change(cache.coordinator)
        self._refusals[cache] = reason

    def _refusal(self, scheduler: Any) -> str | None:
        return refusal(scheduler)

    def _change(self, coordinator: Any) -> Held:
        return keep(coordinator)

    def _count(self, cache: Any, found: Any) -> None:
        try:
            _, tokens, *_ = found
            reason = self._refusals.get(cache, "it was looked up by another than the scheduler")
            if reason is None and not tokens:
                reason = NOTHING_CACHED
            if reason is not None:
                self.counts.fallbacks[reason] += 1
            self.counts.hits += reason is None
        except Exception as error:
            self.counts.failed(error)


def refusal(scheduler: Any) -> str | None:
    """Why this scheduler's cache must go on dropping the last block; None where it need not."""
    if reason := unknown(scheduler):
        return reason
    if not scheduler.kv_cache_manager.coordinator.eagle_group_ids:
        return "no block is dropped here"
    return _mamba_refusal(scheduler)


def unknown(scheduler: Any) -> str | None:
    """Why this scheduler's cache must be left as it is, whatever it drops; None where all of it is known."""
    from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator, UnitaryKVCacheCoordinator

    speculation, cache = scheduler.vllm_config.speculative_config, scheduler.kv_cache_manager
    reason = why_not(None if speculation is None else speculation.method)
    if reason is not None:
        return reason
    if not cache.enable_caching:
        return "prefix caching is off"
    if scheduler.connector is not None:
        return "a KV connector looks blocks up by rules of its own"
    if type(cache.coordinator) not in (UnitaryKVCacheCoordinator, HybridKVCacheCoordinator):
        return f"{type(cache.coordinator).__name__} is not known"
    return None


def _mamba_refusal(scheduler: Any) -> str | None:
    """The same for what the states of Mamba layers may be cached at."""
    cache = scheduler.kv_cache_manager
    if any(getattr(cache, name, False) for name in SHARED_PREFIXES):
        return "Mamba states of shared prefixes are cached by rules that count on the drop"
    inside_blocks = getattr(cache.coordinator, "enable_partial_hash_hits", False)
    if inside_blocks and any(map(exports, cache.coordinator.single_type_managers)):
        return INSIDE_BLOCKS
    return None


def keep(coordinator: Any) -> Held:
    """Make a coordinator and its managers drop nothing; all of it or nothing."""
    changes = Held()
    try:
        changes.set(coordinator, "eagle_group_ids", set())
        if hasattr(coordinator, "attention_groups"):
            groups = [group._replace(use_eagle=False) for group in coordinator.attention_groups]
            changes.set(coordinator, "attention_groups", groups)
        for manager in coordinator.single_type_managers:
            changes.set(manager, "use_eagle", False)
            # Where the workers export states from inside a prefill, both sides go on agreeing on the place.
            if hasattr(manager, "drop_eagle_checkpoint_block") and not exports(manager):
                changes.set(manager, "drop_eagle_checkpoint_block", False)
    except Exception:
        changes.put_back()
        raise
    return changes


def exports(manager: Any) -> bool:
    """Whether the workers export a manager's states from inside a prefill."""
    return bool(getattr(manager, "has_prefill_checkpoint_blocks", False))


def _owner(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The object whose method is called, also where it is given by name."""
    return args[0] if args else named.get("self")
