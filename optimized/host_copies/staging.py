"""Sends host tensors to the device where they have changed, through two buffers each, so that the host need not wait.

A tensor that is read by a copy must not be written until that copy is over. So what is sent is put into one of two
pinned buffers first, which is taken again only after the event behind its last copy: the host may run two copies ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.optimization import Counts, guarded
from optimized.reference_cycle.batch import Batch
from spantrace.patching import Function


class Done(Protocol):
    """The end of a copy."""

    def synchronize(self) -> object:
        """Wait for it."""


Start: TypeAlias = Callable[[Tensor, Tensor], Done]
"""Starts a copy of the first tensor to the second; both must stay until it is done."""


def on_the_stream(source: Tensor, target: Tensor) -> Done:
    """Copy on the current stream of the GPU, from pinned memory."""
    target.copy_(source, non_blocking=True)
    event: Done = torch.cuda.current_stream().record_event()
    return event


class Staged:
    """A host tensor and its copy on the device, with two buffers in between; the device's holds what was sent last."""

    def __init__(self, host: Tensor, device: Tensor, start: Start) -> None:
        self.host, self.device, self._start = host, device, start
        self.buffers = [torch.empty_like(host, pin_memory=host.is_pinned()) for _ in range(2)]
        self._done: list[Done | None] = [None, None]
        self._next = 0

    def send(self) -> None:
        """Start a copy of what the host tensor holds now; it may be written again at once."""
        if (before := self._done[self._next]) is not None:
            before.synchronize()
        buffer = self.buffers[self._next].copy_(self.host)
        self._done[self._next] = self._start(buffer, self.device)
        self._next = 1 - self._next


class Direct:
    """A host tensor and its copy on the same host, which needs no buffer."""

    def __init__(self, host: Tensor, device: Tensor) -> None:
        self.host, self.device = host, device

    def send(self) -> None:
        """Copy."""
        self.device.copy_(self.host)


class Uploads:
    """The slots and tables of one batch: each is sent where it was written to since it was sent last.

    PyTorch counts what is written to a tensor through any view of it, so that nothing has to be compared.
    """

    def __init__(self, batch: Batch, start: Start | None) -> None:
        pairs = (
            (batch.host_slots, batch.slots),
            (batch.host_pages, batch.pages),
            (batch.host_offsets, batch.offsets),
        )
        self.parts = [Staged(*pair, start) if start else Direct(*pair) for pair in pairs]
        self._sent: list[int | None] = [None] * len(pairs)

    def send(self) -> int:
        """Send what has changed, all of it at first; how many tensors that were."""
        changed = [index for index, part in enumerate(self.parts) if part.host._version != self._sent[index]]
        for index in changed:
            self.parts[index].send()
            self._sent[index] = self.parts[index].host._version
        return len(changed)


def why_not(batch: Batch) -> str | None:
    """Why this batch is copied as a whole."""
    if any(part.is_inference() for part in (batch.host_slots, batch.host_pages, batch.host_offsets)):
        return "its host tensors were made in inference mode and do not count what is written"
    return None


class ChangesOnly:
    """The switch; a hit is a cycle, which uploads once, if only nothing."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._uploads: WeakKeyDictionary[Batch, Uploads] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""
        seam = partial(guarded, fast=self.upload, why_not=why_not, counts=self.counts, recover=self._forget)
        return {"Batch.upload": seam}

    def allocated(self) -> int:
        """None: the buffers are memory of the host."""
        return 0

    def close(self) -> None:
        """Forget what was sent."""
        self._uploads.clear()

    def upload(self, batch: Batch) -> None:
        """Bring the device's slots and tables up to date."""
        if (uploads := self._uploads.get(batch)) is None:
            uploads = self._uploads[batch] = Uploads(batch, on_the_stream if batch.slots.is_cuda else None)
        uploads.send()

    def _forget(self, error: Exception, batch: Batch) -> None:
        """Send all of it next time: what was sent last is not known."""
        self._uploads.pop(batch, None)
