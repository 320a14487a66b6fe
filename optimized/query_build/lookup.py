"""The block's inputs from static index buffers: B + 1 embeddings are read, and the mask's is spread over the block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.optimization import Counts, guarded
from optimized.reference_cycle.drafter import Drafter, Queries
from spantrace.patching import Function


@dataclass(frozen=True)
class Indices:
    """ids int64 [B + 1], the last being the mask; block int64 [S] and rows int64 [K + 1] count from 0."""

    ids: Tensor
    block: Tensor
    rows: Tensor

    @classmethod
    def create(cls, batch: int, block: int, rows: int, mask_token: int, device: str) -> Indices:
        """Indices for blocks of `block` tokens after `rows` verified rows."""
        ids = torch.full((batch + 1,), mask_token, dtype=torch.int64, device=device)
        return cls(ids, torch.arange(block, device=device), torch.arange(rows, device=device))

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.nbytes for part in (self.ids, self.block, self.rows))


def build(
    indices: Indices, embedding: Tensor, verdict: tuple[Tensor, Tensor], lengths: Tensor, limit: int, out: Queries
) -> None:
    """Fill `out` from accepted int32 [B, K + 1] and counts int32 [B], and the contexts' lengths int64 [B]."""
    accepted, counts = verdict
    last = (counts.long() - 1).clamp_(min=0).unsqueeze(1)
    out.bonus.copy_(accepted.gather(1, last).squeeze(1))
    out.counts.copy_(counts)
    indices.ids[:-1].copy_(out.bonus)
    torch.add((lengths + counts).clamp_(max=limit).unsqueeze(1), indices.block, out=out.positions)
    torch.add(lengths.unsqueeze(1), indices.rows, out=out.context_positions)
    looked_up = embedding.index_select(0, indices.ids)
    out.noise[:, 0] = looked_up[:-1]
    out.noise[:, 1:] = looked_up[-1]


def why_not(drafter: Drafter, accepted: Tensor, counts: Tensor) -> str | None:
    """Why these verdicts are not taken."""
    if accepted.shape != drafter.queries.context_positions.shape or counts.shape != drafter.queries.counts.shape:
        return "the verdict has another shape than the buffers"
    if accepted.dtype != torch.int32 or counts.dtype != torch.int32:
        return "the verdict is not int32"
    if drafter.target.embedding.dtype != drafter.queries.noise.dtype:
        return "the embedding has another dtype than the block"
    return None


class OneLookup:
    """The switch; a hit is a block built."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._indices: WeakKeyDictionary[Drafter, Indices] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""
        return {"Drafter.build_queries": partial(guarded, fast=self.build_queries, why_not=why_not, counts=self.counts)}

    def allocated(self) -> int:
        """Bytes of all drafters' indices."""
        return sum(indices.nbytes() for indices in self._indices.values())

    def close(self) -> None:
        """Drop the indices."""
        self._indices.clear()

    def build_queries(self, drafter: Drafter, accepted: Tensor, counts: Tensor) -> None:
        """Fill the drafter's `queries`, as its own method would."""
        settings = drafter.settings
        if (indices := self._indices.get(drafter)) is None:
            mask, rows = settings.geometry.mask_token, settings.speculative + 1
            indices = Indices.create(settings.batch, drafter.block, rows, mask, settings.device)
            self._indices[drafter] = indices
        lengths = drafter.context_lengths[drafter.slots]
        build(indices, drafter.target.embedding, (accepted, counts), lengths, settings.draft_context, drafter.queries)
