"""A sampler's copies of its parameters, left out while no request is added to it."""

from __future__ import annotations

from collections.abc import Collection
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from optimized.optimization import Counts
from spantrace.patching import Function

FIRST, ADDED = "the first step", "a request was added"
STRANGE_SAMPLER, STRANGE_PROCESSOR = "a sampler of its own", "a logits processor of its own"


def name_of(kind: type) -> str:
    """A class as "module:Class"."""
    return f"{kind.__module__}:{kind.__qualname__}"


class UnchangedWrites:
    """Knows of each sampler why its parameters must be copied, or that the GPU has them; a hit is a step without.

    `samplers` and `processors` are the classes, as "module:Class", of which it is known that nothing but an added
    request changes what they copy. Errors of this class's own are counted, and everything is copied.
    """

    def __init__(self, samplers: Collection[str], processors: Collection[str]) -> None:
        self.counts = Counts()
        self._samplers, self._processors = samplers, processors
        self._why: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()

    def allocated(self) -> int:
        """Nothing on any device."""
        return 0

    def close(self) -> None:
        """Forget what every sampler was."""
        self._why.clear()

    def adding(self, original: Function) -> Function:
        """Notes the request before it is added: where that breaks off, some of its parameters have changed already."""

        @wraps(original)
        def add(sampler: Any, *args: Any, **named: Any) -> Any:
            try:
                self._why[sampler] = ADDED
            except Exception as error:
                self.counts.failed(error)
                self.close()
            return original(sampler, *args, **named)

        return add

    def writing(self, original: Function) -> Function:
        """Copies where there is a reason to, and remembers it as done only once it is."""

        # A pool's buffers are copied into in turn, as many as there are steps in flight. Where fewer steps copy, a turn
        # takes longer: what is overwritten was last read at least as many steps ago as where every step copies.
        @wraps(original)
        def write(sampler: Any) -> Any:
            try:
                reason = self._why.get(sampler, FIRST)
            except Exception as error:
                self.counts.failed(error)
                return original(sampler)
            if reason is None:
                self.counts.hits += 1
                return None
            self.counts.fallbacks[reason] += 1
            result = original(sampler)
            self._settle(sampler)
            return result

        return write

    def _settle(self, sampler: Any) -> None:
        """All is copied; whether it stays so until a request is added."""
        try:
            self._why[sampler] = self._refusal(sampler)
        except Exception as error:
            self.counts.failed(error)

    def _refusal(self, sampler: Any) -> str | None:
        if name_of(type(sampler)) not in self._samplers:
            return STRANGE_SAMPLER
        processors = getattr(sampler, "logits_processors", ())
        known = all(name_of(type(processor)) in self._processors for processor in processors)
        return None if known else STRANGE_PROCESSOR
