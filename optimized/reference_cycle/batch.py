"""What the device knows of the requests in flight: static tensors by batch row, filled from pinned host staging."""

from __future__ import annotations

import torch
from torch import Tensor

from optimized.reference_cycle.settings import Settings


class Batch:
    """One row per request that can be in flight; an idle row points to the dummy slot and to page 0.

    A number on the device is set by `fill_`: to assign it through an index would be to wait for the GPU.

    slots int64 [B] (B is the dummy), pages int32 [B, MB] (-1 where none), offsets int32 [1, B, 2, MB] (the same pages
    as a pool manager writes them, times `divisor`, -1 where none), cached int64 [B] (tokens in the target's caches),
    last int64 [B] (the newest token, not cached yet), drafts int64 [B, K] (-1 where nothing is drafted).
    """

    def __init__(self, settings: Settings) -> None:
        rows, width, device = settings.batch, settings.table_width, settings.device
        self.dummy, self.rows = rows, rows
        self.divisor = settings.geometry.dspark.layers
        pinned = torch.device(device).type == "cuda"
        self.host_slots = torch.full((rows,), self.dummy, dtype=torch.int64, pin_memory=pinned)
        self.host_pages = torch.full((rows, width), -1, dtype=torch.int32, pin_memory=pinned)
        self.host_offsets = torch.full((1, rows, 2, width), -1, dtype=torch.int32, pin_memory=pinned)
        self.slots = self.host_slots.to(device, copy=True)
        self.pages = self.host_pages.to(device, copy=True)
        self.offsets = self.host_offsets.to(device, copy=True)
        self.cached = torch.zeros(rows, dtype=torch.int64, device=device)
        self.last = torch.zeros(rows, dtype=torch.int64, device=device)
        self.drafts = torch.full((rows, settings.speculative), -1, dtype=torch.int64, device=device)

    def place(self, row: int, slot: int, cached: int, last: int) -> None:
        """Give a row to a request whose prompt of `cached` tokens is in the caches."""
        self.host_slots[row] = slot
        self.cached[row].fill_(cached)
        self.last[row].fill_(last)
        self.drafts[row].fill_(-1)

    def clear(self, row: int) -> None:
        """Make a row idle."""
        self.host_slots[row] = self.dummy
        self.host_pages[row] = -1
        self.host_offsets[0, row] = -1
        self.cached[row].zero_()

    def give_pages(self, row: int, first: int, pages: list[int]) -> None:
        """Write a request's new pages into its tables, from entry `first` on; values sit in the plane after keys."""
        entries = torch.tensor(pages, dtype=torch.int32)
        upto = first + len(pages)
        self.host_pages[row, first:upto] = entries
        self.host_offsets[0, row, 0, first:upto] = entries * self.divisor
        self.host_offsets[0, row, 1, first:upto] = entries * self.divisor + 1

    def upload(self) -> None:
        """Copy slots and tables to the device; the copies of one step end before the host writes the next step's."""
        self.slots.copy_(self.host_slots, non_blocking=True)
        self.pages.copy_(self.host_pages, non_blocking=True)
        self.offsets.copy_(self.host_offsets, non_blocking=True)

    def advance(self, counts: Tensor, newest: Tensor) -> None:
        """Count the tokens int64 [B] that this step accepted as cached; idle rows stay empty."""
        self.cached += counts * (self.slots != self.dummy)
        self.last.copy_(newest)


class Readback:
    """Brings a step's accepted tokens to the host: the copy starts behind the sampling, not behind the drafting."""

    def __init__(self, settings: Settings) -> None:
        self._cuda = torch.device(settings.device).type == "cuda"
        shape = (settings.batch, settings.speculative + 1)
        self._accepted = torch.zeros(shape, dtype=torch.int32, pin_memory=self._cuda)
        self._counts = torch.zeros(settings.batch, dtype=torch.int32, pin_memory=self._cuda)
        self._copied = torch.cuda.Event() if self._cuda else None

    def start(self, accepted: Tensor, counts: Tensor) -> None:
        """Start copying accepted int32 [B, K + 1] and counts int32 [B]."""
        self._accepted.copy_(accepted, non_blocking=True)
        self._counts.copy_(counts, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> list[list[int]]:
        """Wait for the copy; each row's accepted tokens."""
        if self._copied is not None:
            self._copied.synchronize()
        pairs = zip(self._accepted.tolist(), self._counts.tolist(), strict=True)
        return [tokens[:count] for tokens, count in pairs]
