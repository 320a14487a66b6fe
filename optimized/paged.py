"""Requests whose contexts lie in pages: what the bookkeeping around a drafter's paged latents is judged on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.cases import Place

DIVISOR = 3
"""What a pool manager multiplies pages by."""


@dataclass(frozen=True)
class Shape:
    """B requests with K drafts and blocks of S tokens, pages of `page` tokens, `width` of them in a table's row.

    A context ends at `limit` tokens; a latent has `latent` normed numbers and `rope` rotated ones in each of `layers`.
    """

    batch: int = 3
    drafts: int = 3
    block: int = 3
    page: int = 4
    width: int = 6
    limit: int = 20
    layers: int = 2
    latent: int = 8
    rope: int = 4

    @property
    def rows(self) -> int:
        """Verified rows of a request, K + 1."""
        return self.drafts + 1

    @property
    def pages(self) -> int:
        """Pages of a pool, page 0 included, which belongs to nobody."""
        return 1 + self.batch * self.width


class Requests:
    """Requests that accept counts[(row + step) mod n] tokens a step; 0 makes a row idle, where all is accepted.

    lengths int64 [B + 1] are the contexts by slot before the step, the last slot being the dummy; by row are slots
    and counts int64 [B], table int32 [B, MB] with page_counts int64 [B], and offsets int32 [2, B + 1, 2, MB], whose
    pool 1 is what `table` was decoded from. A request has pages for its context and the verified rows, as far as the
    table reaches; of every row's pages the one at `hole` is missing.
    """

    def __init__(
        self, shape: Shape, counts: tuple[int, ...], start: int, place: Place, hole: int | None = None
    ) -> None:
        self.shape, self.pattern, self.step, self.hole = shape, counts, 0, hole
        self.device, self.dtype = place.device, getattr(torch, place.dtype)
        self.random = torch.Generator().manual_seed(4)
        self.lengths = torch.full((shape.batch + 1,), min(start, shape.limit), dtype=torch.int64, device=place.device)
        self.lengths[-1] = 0
        order = 1 + torch.randperm(shape.batch * shape.width, generator=self.random)
        self._own = order.reshape(shape.batch, shape.width).to(torch.int32)
        self._arrange()

    @property
    def dummy(self) -> int:
        """The slot of rows that are idle."""
        return self.shape.batch

    def starts(self) -> Tensor:
        """Each row's context before this step, int64 [B]."""
        return self.lengths[self.slots]

    def next(self) -> None:
        """The next step, after `lengths` have advanced."""
        self.step += 1
        self._arrange()

    def grow(self) -> None:
        """The next step, after each row's context has taken its accepted rows, as far as one reaches."""
        self.lengths[self.slots] = (self.starts() + self.counts).clamp(max=self.shape.limit)
        self.lengths[-1] = 0
        self.next()

    def draw(self, *size: int) -> Tensor:
        """Normal numbers in the activations' dtype."""
        return torch.randn(size, generator=self.random).to(self.device, self.dtype)

    def _arrange(self) -> None:
        shape = self.shape
        counts = torch.tensor([self.pattern[(row + self.step) % len(self.pattern)] for row in range(shape.batch)])
        own = torch.arange(shape.batch - 1, -1, -1)
        self.slots = torch.where(counts > 0, own, self.dummy).to(self.device)
        self.counts = torch.where(counts > 0, counts, shape.rows).to(self.device)
        needed = self.lengths.cpu()[own] + shape.rows
        held = (-(-needed // shape.page)).clamp(max=shape.width) * (counts > 0)
        column = torch.arange(shape.width)
        there = column < held.unsqueeze(1)
        if self.hole is not None:
            there &= column != self.hole
        self.page_counts = there.sum(dim=1).to(self.device)
        self.table = torch.where(there, self._own, 0).to(self.device, torch.int32)
        self.offsets = self._encoded(there).to(self.device, torch.int32)

    def _encoded(self, there: Tensor) -> Tensor:
        """The table as a pool manager writes it: pages times DIVISOR and a remainder, in pool 1's plane of keys."""
        shape = self.shape
        offsets = torch.randint(-9, 99, (2, shape.batch + 1, 2, shape.width), generator=self.random)
        remainder = torch.randint(DIVISOR, there.shape, generator=self.random)
        absent = -1 - remainder
        offsets[1, : shape.batch, 0] = torch.where(there, self._own * DIVISOR + remainder, absent)
        return offsets
