"""The attention groups that a target's step builds metadata for: none whose layers all are the drafter's.

A runner passes one list of lists, of groups by KV cache, to the model state in every step. Its drafter knows the names
of its own layers, and has groups of its own with which it builds what it attends with.

Which model state a server has, and so whose method to replace, its model decides. The runner calls a method of its own
right before, in a step and in no dummy run: there the state that it has is given a stand-in for its next call alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from functools import partial, wraps
from typing import Any
from weakref import WeakSet, ref

from optimized.optimization import Counts
from spantrace.patching import Function

OTHER = "the groups are not the runner's"
CAPTURE = "a graph is captured"
STRANGE_STATE, STRANGE_DRAFTER = "a model state of its own", "a drafter of its own"
CONNECTOR = "a KV connector may read the drafter's metadata"
MICROBATCHES = "steps are split into microbatches"
SPREAD = "the context is spread over ranks"
NONE_ALONE, ALL_ALONE = "no group is the drafter's alone", "every group is the drafter's alone"

METHOD = "prepare_attn"
Groups = Sequence[Sequence[Any]]


def name_of(kind: type) -> str:
    """A class as "module:Class"."""
    return f"{kind.__module__}:{kind.__qualname__}"


def without(groups: Groups, layers: AbstractSet[str]) -> list[list[Any]] | str:
    """The groups that have a layer beside these, still by KV cache; why not, where that is all of them or none."""
    kept = [[one for one in of_cache if not layers >= set(one.layer_names)] for of_cache in groups]
    if not any(kept):
        return ALL_ALONE
    return NONE_ALONE if all(len(one) == len(other) for one, other in zip(kept, groups, strict=True)) else kept


def why_all(config: Any) -> str | None:
    """What in a server's configuration reads or spreads the metadata of all groups; None where nothing does."""
    parallel = config.parallel_config
    if config.kv_transfer_config is not None:
        return CONNECTOR
    if parallel.use_ubatching:
        return MICROBATCHES
    spread = max(parallel.prefill_context_parallel_size, parallel.decode_context_parallel_size) > 1
    return SPREAD if spread else None


class TargetGroups:
    """Leaves the drafter's groups out of a runner's steps; a hit is a step that left some out.

    `states` and `drafters` are the classes, as "module:Class", of which it is known what they read. Errors of this
    class's own are counted, and all groups are built for.
    """

    def __init__(self, states: Collection[str], drafters: Collection[str]) -> None:
        self.counts = Counts()
        self._states, self._drafters = states, drafters
        self._prepared: WeakSet[Any] = WeakSet()

    def allocated(self) -> int:
        """Nothing on any device."""
        return 0

    def close(self) -> None:
        """Take the stand-in of a step that broke off away."""
        for state in self._prepared:
            vars(state).pop(METHOD, None)
        self._prepared.clear()

    def stepping(self, original: Function) -> Function:
        """The original, which a runner calls right before the step's metadata is built."""

        @wraps(original)
        def step(runner: Any, *args: Any, **named: Any) -> Any:
            result = original(runner, *args, **named)
            try:
                reason = self._begin(runner)
            except Exception as error:
                self.counts.failed(error)
            else:
                if reason is not None:
                    self.counts.fallbacks[reason] += 1
            return result

        return step

    def _begin(self, runner: Any) -> str | None:
        """Give the runner's state the stand-in, or say why not."""
        state, groups = runner.model_state, runner.attn_groups
        vars(state).pop(METHOD, None)
        if name_of(type(state)) not in self._states:
            return STRANGE_STATE
        if name_of(type(runner.speculator)) not in self._drafters:
            return STRANGE_DRAFTER
        found = why_all(runner.vllm_config) or without(groups, runner.speculator.draft_attn_layer_names)
        if isinstance(found, str):
            return found
        self._prepared.add(state)
        setattr(state, METHOD, partial(self._prepare, ref(state), groups, found))
        return None

    def _prepare(self, state: Any, groups: Groups, kept: Groups, *args: Any, **named: Any) -> Any:
        """The state's own method, once, with the groups that are kept in the place of all."""
        owner = state()
        vars(owner).pop(METHOD, None)
        at = next((number for number, one in enumerate(args) if one is groups), None)
        reason = CAPTURE if named.get("for_capture") else OTHER if at is None else None
        if reason is not None or at is None:
            self.counts.fallbacks[reason or OTHER] += 1
            return getattr(owner, METHOD)(*args, **named)
        self.counts.hits += 1
        return getattr(owner, METHOD)(*args[:at], kept, *args[at + 1 :], **named)
