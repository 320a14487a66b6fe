"""What the device must hold after every upload: what the host's tensors hold, all of it copied each time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.host_copies.staging import Done, Staged, Uploads, on_the_stream
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.geometry import Geometry
from optimized.reference_cycle.settings import Settings


class AtOnce:
    """The end of a copy that was over when it was started."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


def at_once(source: Tensor, target: Tensor) -> Done:
    """Copy while the host waits."""
    target.copy_(source)
    return AtOnce()


class Uploading:
    """Requests in the first `busy` rows that grow by counts[(row + step) mod n] tokens and hold pages for them.

    A request whose pages are used up ends, and another one takes its row in the next step.
    """

    def __init__(self, settings: Settings, busy: int, counts: tuple[int, ...], cached: int) -> None:
        self.settings, self.busy, self.pattern, self.step, self.served = settings, busy, counts, 0, 0
        self.batch = Batch(settings)
        self.uploads = Uploads(self.batch, on_the_stream if settings.device == "cuda" else at_once)
        self.lengths: dict[int, int] = {}
        for row in range(busy):
            self._begin(row, cached + row)

    def inputs(self) -> dict[str, Tensor]:
        """What the host holds."""
        batch = self.batch
        return {"slots": batch.host_slots, "pages": batch.host_pages, "offsets": batch.host_offsets}

    def poison(self) -> None:
        """Fill the buffers in between: what is sent next is put there first."""
        if self.settings.device == "cuda":
            torch.cuda.synchronize()
        for part in self.uploads.parts:
            for buffer in part.buffers if isinstance(part, Staged) else ():
                buffer.fill_(-77)

    def reference(self) -> dict[str, Tensor]:
        """Everything."""
        self.batch.upload()
        return self._held()

    def fast(self) -> dict[str, Tensor]:
        """What has changed."""
        self.uploads.send()
        return self._held()

    def next(self) -> None:
        """Grow, end and begin."""
        self.step += 1
        for row in range(self.busy):
            if row not in self.lengths:
                self._begin(row, 1)
                continue
            before = self._pages(row)
            self.lengths[row] += self.pattern[(row + self.step) % len(self.pattern)]
            if self.lengths[row] >= self.settings.capacity:
                del self.lengths[row]
                self.batch.clear(row)
            elif (now := self._pages(row)) > before:
                self.batch.give_pages(row, before, self._numbers(row, range(before, now)))

    def _begin(self, row: int, cached: int) -> None:
        self.served += 1
        self.lengths[row] = cached
        self.batch.place(row, (row + self.served) % self.settings.batch, cached, 0)
        self.batch.give_pages(row, 0, self._numbers(row, range(self._pages(row))))

    def _pages(self, row: int) -> int:
        return -(-self.lengths[row] // self.settings.page_size)

    def _numbers(self, row: int, pages: Iterable[int]) -> list[int]:
        return [1 + (self.served * 31 + row * 7 + page * 3) % 97 for page in pages]

    def _held(self) -> dict[str, Tensor]:
        batch = self.batch
        return {"slots": batch.slots.clone(), "pages": batch.pages.clone(), "offsets": batch.offsets.clone()}


def cases() -> list[Case]:
    """Pages that are used up fast and slowly, idle rows, odd shapes, tables that are full, and 20 steps."""
    settings = Settings(Geometry(), draft_length=3, batch=3, context=30, page_size=4)

    def case(
        name: str, busy: int, counts: tuple[int, ...], cached: int, steps: int = 2, at: Settings = settings
    ) -> Case:
        def make(place: Place) -> Uploading:
            return Uploading(replace(at, device=place.device, dtype=place.dtype), busy, counts, cached)

        return Case(name, make, steps)

    odd = Settings(Geometry(), draft_length=5, batch=5, context=37, page_size=3)
    return [
        case("all accepted", 3, (4,), 9, 3),
        case("none accepted", 3, (1,), 9, 6),
        case("idle rows", 1, (2,), 3),
        case("every row idle", 0, (1,), 1),
        case("odd shapes", 5, (2, 6, 1), 11, 4, odd),
        case("capacity reached", 2, (4,), 30, 5),
        case("20 steps", 3, (1, 4, 2), 5, 20),
    ]
