"""Forks each drafter's projection off where it observes, and joins it where the context is extended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from optimized.aux_stream_context import MOST_TOKENS, ahead
from optimized.aux_stream_context.ahead import OTHER_CAPTURE, Ahead
from optimized.optimization import Counts, guarded
from optimized.passes import OLDER
from optimized.reference_cycle.drafter import Drafter
from spantrace.patching import Function

UNMADE = "its buffer was not made before the capture"


def why_not(drafter: Drafter) -> str | None:
    """Why this drafter projects its rows where it needs them."""
    if not drafter.captured.is_cuda:
        return "a CPU has no second stream"
    tokens = drafter.captured.shape[0] * drafter.captured.shape[1]
    return f"{tokens} verified rows are more than {MOST_TOKENS}" if tokens > MOST_TOKENS else None


def _nothing(drafter: Drafter) -> None:
    """What stock does where the rows are forked off."""


class AuxStream:
    """The switch; a hit is a step that joined what it had forked.

    The pass that extends the context is replayed on a GPU without being called, and reads the rows from a buffer that
    stays where it is. A step that has nothing to join fills that buffer in its own stream.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._ahead: WeakKeyDictionary[Drafter, Ahead] = WeakKeyDictionary()
        self._refused: WeakKeyDictionary[Drafter, str | None] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[Drafter, None] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """Observing forks, extending the context joins first, and the rows are those of the buffer."""
        return {
            "Drafter.observe": self._observing,
            "Drafter.context_rows": partial(self._quiet, fast=self.rows),
            "Drafter.extend_context": self._extending,
        }

    def allocated(self) -> int:
        """Bytes of all drafters' rows."""
        return sum(made.rows.nbytes for made in self._ahead.values())

    def close(self) -> None:
        """Drop the rows, and the graphs that read or write them."""
        for drafter, made in self._ahead.items():
            made.close()
            drafter.forget_graphs()
        self._ahead.clear()

    def why_not(self, drafter: Drafter, *_: Any) -> str | None:
        """Why this drafter goes without: for good, or in a capture that came before its buffer was made."""
        if drafter not in self._refused:
            self._refused[drafter] = why_not(drafter)
        if self._refused[drafter] is None and drafter not in self._ahead and ahead.capturing():
            return UNMADE
        return self._refused[drafter]

    def rows(self, drafter: Drafter) -> Tensor:
        """The drafter's projected rows, joined before."""
        self._read[drafter] = None
        return self.ahead_of(drafter).rows

    def ahead_of(self, drafter: Drafter) -> Ahead:
        """What starts the drafter's projection."""
        if drafter not in self._ahead:
            self._ahead[drafter] = Ahead(drafter)
        return self._ahead[drafter]

    def _observing(self, original: Function) -> Function:
        settle = self._quiet(_nothing, fast=lambda drafter: self.ahead_of(drafter).settle())
        start = self._quiet(_nothing, fast=lambda drafter: self.ahead_of(drafter).start())

        @wraps(original)
        def observe(drafter: Drafter, taps: Tensor) -> None:
            settle(drafter)
            original(drafter, taps)
            start(drafter)

        return observe

    def _extending(self, original: Function) -> Function:
        def join(drafter: Drafter) -> None:
            self.ahead_of(drafter).join()

        joined = guarded(self._project, join, self._why_not_join, self.counts, recover=self._give_up)

        @wraps(original)
        def extend_context(drafter: Drafter) -> None:
            joined(drafter)
            original(drafter)

        return extend_context

    def _quiet(self, original: Function, fast: Function) -> Function:
        return guarded(original, fast, self.why_not, self.counts, count_hits=False, recover=self._give_up)

    def _why_not_join(self, drafter: Drafter) -> str | None:
        """Why this step makes its rows in its own stream; rows of another capture cannot be waited for at all."""
        if reason := self.why_not(drafter):
            return reason
        if drafter.context_pass.replayed and drafter not in self._read:
            return OLDER
        reason = self.ahead_of(drafter).why_not()
        if reason == OTHER_CAPTURE:
            self._refuse(drafter, reason)
        return reason

    def _project(self, drafter: Drafter) -> None:
        """Fill the buffer here and now."""
        if self.why_not(drafter):
            return
        try:
            self.ahead_of(drafter).project()
        except Exception as error:
            self.counts.failed(error)
            self._give_up(error, drafter)

    def _give_up(self, error: Exception, drafter: Drafter, *_: Any) -> None:
        self._refuse(drafter, f"it failed before ({type(error).__name__})")

    def _refuse(self, drafter: Drafter, reason: str) -> None:
        """Go without from now on, in a graph that does not read the buffer."""
        self._refused[drafter] = reason
        drafter.context_pass.forget()
