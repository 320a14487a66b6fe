"""Puts the kernels in place of the verdict's chain of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from optimized.accept.accepting import Buffers, accept, why_not
from optimized.optimization import Counts, guarded
from optimized.reference_cycle.acceptance import Verdict, Verifier
from spantrace.patching import Function


class Accepting:
    """The switch; a hit is a verdict."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._buffers: WeakKeyDictionary[Verifier, dict[Any, Buffers]] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""

        def refused(verifier: Verifier, logits: Tensor, drafts: Tensor) -> str | None:
            return why_not(logits, drafts)

        return {"Verifier.accept": partial(guarded, fast=self.accept, why_not=refused, counts=self.counts)}

    def allocated(self) -> int:
        """Bytes of all verifiers' buffers."""
        return sum(buffers.nbytes() for own in self._buffers.values() for buffers in own.values())

    def close(self) -> None:
        """Drop the buffers."""
        self._buffers.clear()

    def accept(self, verifier: Verifier, logits: Tensor, drafts: Tensor) -> Verdict:
        """The verifier's verdict, overwritten by the next one on as many drafts."""
        shape = len(drafts), drafts.shape[1] + 1, logits.shape[2]
        own = self._buffers.setdefault(verifier, {})
        if (key := (shape, logits.device)) not in own:
            own[key] = Buffers.create(*shape, logits.device)
        return accept(logits, drafts, own[key])
