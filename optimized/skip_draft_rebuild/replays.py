"""Which replays of a drafter's graph read nothing of the metadata built for them, and what is built all the same.

A propose() first dispatches: it learns whether a FULL graph is replayed. Then it builds metadata and slot mappings,
then it settles the experts' load, then it replays the graph or runs the layers. vLLM's classes are not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

from optimized.optimization import Counts
from spantrace.patching import Function

NO_GRAPH = "the draft runs without a FULL graph"
NO_BUILDER = "the drafter has no metadata builder"
SPREAD = "the context is spread over ranks"
WINDOWED = "a builder keeps the prefixes of R-SWA for the graph"
REBUILT = "vLLM rebuilds this drafter's metadata by itself"
_NO_GROUPS = SimpleNamespace(kv_cache_groups=())
"""In the place of a KV cache configuration: no slot mapping is made for it."""


def why_needed(drafter: Any, harmless: type) -> str | None:
    """Why its metadata must be built for a replay too; None where it surely has no effect there.

    Harmless is a builder that leaves nothing behind that a graph reads; one of a subclass may, and so is not.
    """
    builders = [group.get_metadata_builder() for groups in drafter.attn_groups for group in groups]
    if not builders:
        return NO_BUILDER
    if others := [type(builder).__name__ for builder in builders if type(builder) is not harmless]:
        return f"{others[0]} may keep something for the graph"
    if any(builder.rswa_window is not None for builder in builders):
        return WINDOWED
    if drafter.block_tables.cp_size != 1 or getattr(drafter, "pcp_manager", None) is not None:
        return SPREAD
    return None


class Replays:
    """Follows a drafter from its dispatch to where it settles; a hit is one FULL replay that was treated.

    Until it settles, one attribute of the drafter may be held at another value. Errors of this class's own are counted,
    and the drafter goes on as it would without it.
    """

    def __init__(self, harmless: type) -> None:
        self.counts = Counts()
        self._harmless = harmless
        self._full = False
        self._held: tuple[Any, str, object] | None = None

    def allocated(self) -> int:
        """Nothing on any device."""
        return 0

    def close(self) -> None:
        """Give back what is held."""
        self._put_back()

    def dispatching(self, original: Function) -> Function:
        """Notes whether a FULL graph was chosen."""

        @wraps(original)
        def dispatch(*args: Any, **named: Any) -> Any:
            self._put_back()
            self._full = False
            chosen = original(*args, **named)
            try:
                self._full = chosen[0].cg_mode.name == "FULL"
                if not self._full:
                    self.counts.fallbacks[NO_GRAPH] += 1
            except Exception as error:
                self.counts.failed(error)
            return chosen

        return dispatch

    def settling(self, original: Function) -> Function:
        """Gives back what is held."""

        @wraps(original)
        def settle(*args: Any, **named: Any) -> Any:
            self._put_back()
            return original(*args, **named)

        return settle

    def treats(self, drafter: Any, why_not: Callable[[Any], str | None], name: str, value: object) -> bool:
        """Whether this is a FULL replay, the first time since its dispatch, that nothing speaks against; counted.

        Then `drafter.name` is `value` until it settles.
        """
        full, self._full = self._full, False
        if not full:
            return False
        try:
            reason = why_needed(drafter, self._harmless) or why_not(drafter)
            if reason is None:
                held = drafter, name, getattr(drafter, name)
                setattr(drafter, name, value)
                self._held = held
        except Exception as error:
            self.counts.failed(error)
            return False
        if reason is not None:
            self.counts.fallbacks[reason] += 1
        self.counts.hits += reason is None
        return reason is None

    def _put_back(self) -> None:
        if self._held is not None:
            (drafter, name, value), self._held = self._held, None
            try:
                setattr(drafter, name, value)
            except Exception as error:
                self.counts.failed(error)


class WithoutRebuild(Replays):
    """Builds neither metadata nor slot mappings for a replay that reads none."""

    def building(self, original: Function) -> Function:
        """No metadata, and no KV cache groups to make slot mappings of, where nothing reads them."""

        @wraps(original)
        def build(drafter: Any, *args: Any, **named: Any) -> Any:
            if self.treats(drafter, lambda _: None, "kv_cache_config", _NO_GROUPS):
                return None
            return original(drafter, *args, **named)

        return build


class WithRebuild(Replays):
    """Has the metadata built for a replay whose graph updates its own: what vLLM did before it had the fix."""

    def preparing(self, original: Function) -> Function:
        """Says, until the drafter settles, that its graph updates nothing; while a graph is captured it stays true."""

        @wraps(original)
        def prepare(drafter: Any, *args: Any, **named: Any) -> Any:
            self.treats(drafter, _why_not, "supports_decode_metadata_update", False)
            return original(drafter, *args, **named)

        return prepare


def _why_not(drafter: Any) -> str | None:
    return None if drafter.supports_decode_metadata_update else REBUILT
