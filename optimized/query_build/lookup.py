"""The block's inputs by one lookup of B + 1 embeddings, the mask's being spread over the block.

Where Triton's kernels run, one of them does all of it. A table that is shared out over ranks does its own lookup, for
ids that a first kernel has found and with rows that a second one puts into place. Elsewhere it is PyTorch's operations
on static index buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.launching import EXACT, launch, power_of_two, why_no_kernels
from optimized.optimization import Counts, guarded
from optimized.reference_cycle.drafter import Drafter, Queries
from optimized.reference_cycle.embedding import Embedding, look_up
from spantrace.patching import Function

MOST_COLUMNS = 4096
"""Of a row of the embedding, in one step of a kernel."""
Verdict = tuple[Tensor, Tensor]
"""accepted int32 [B, K + 1] and counts int32 [B]."""


@dataclass(frozen=True)
class Contexts:
    """lengths int64 by slot before this cycle, slots int64 [B] of the batch's rows, and the longest length."""

    lengths: Tensor
    slots: Tensor
    limit: int


@dataclass(frozen=True)
class Indices:
    """ids int64 [B + 1], the last being the mask; block int64 [S] and rows int64 [K + 1] count from 0."""

    ids: Tensor
    block: Tensor
    rows: Tensor

    @classmethod
    def create(cls, batch: int, block: int, rows: int, mask_token: int, device: torch.device) -> Indices:
        """Indices for blocks of `block` tokens after `rows` verified rows."""
        ids = torch.full((batch + 1,), mask_token, dtype=torch.int64, device=device)
        return cls(ids, torch.arange(block, device=device), torch.arange(rows, device=device))

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.nbytes for part in (self.ids, self.block, self.rows))

    def build(self, embedding: Embedding, verdict: Verdict, contexts: Contexts, out: Queries) -> None:
        """Fill `out` by PyTorch's operations."""
        accepted, counts = verdict
        lengths, last = contexts.lengths[contexts.slots], (counts.long() - 1).clamp_(min=0).unsqueeze(1)
        out.bonus.copy_(accepted.gather(1, last).squeeze(1))
        out.counts.copy_(counts)
        self.ids[:-1].copy_(out.bonus)
        torch.add((lengths + counts).clamp_(max=contexts.limit).unsqueeze(1), self.block, out=out.positions)
        torch.add(lengths.unsqueeze(1), self.rows, out=out.context_positions)
        looked_up = look_up(embedding, self.ids)
        out.noise[:, 0] = looked_up[:-1]
        out.noise[:, 1:] = looked_up[-1]


@dataclass(frozen=True)
class Kernels:
    """The mask's token, and ids int64 [B + 1] for a table that does its own lookup; None where the kernel reads it."""

    mask_token: int
    ids: Tensor | None

    @classmethod
    def create(cls, embedding: Embedding, batch: int, mask_token: int) -> Kernels:
        """What the kernels need for that table."""
        whole = isinstance(embedding, Tensor)
        ids = None if whole else torch.empty(batch + 1, dtype=torch.int64, device=embedding.device)
        return cls(mask_token, ids)

    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self.ids is None else int(self.ids.nbytes)

    def build(self, embedding: Embedding, verdict: Verdict, contexts: Contexts, out: Queries) -> None:
        """Fill `out` in one launch, or in two around the table's own lookup."""
        from optimized.query_build import kernels

        batch, block, hidden = out.noise.shape
        rows, device = out.context_positions.shape[1], out.noise.device.type
        sizes = {"BLOCK": block, "HIDDEN": hidden, "WIDTH": min(power_of_two(hidden), MOST_COLUMNS)}
        arguments = {
            "accepted": verdict[0],
            "counts": verdict[1],
            "slots": contexts.slots,
            "lengths": contexts.lengths,
            "embedding": embedding if self.ids is None else out.noise,
            "ids": out.bonus if self.ids is None else self.ids,
            "bonus": out.bonus,
            "kept": out.counts,
            "positions": out.positions,
            "context": out.context_positions,
            "noise": out.noise,
            "limit": contexts.limit,
            "mask": self.mask_token,
            "ROWS": rows,
            "ROWS_WIDTH": power_of_two(rows),
            "EMBED": self.ids is None,
        }
        launch(kernels.build_block, device, (batch, block), arguments | sizes, **EXACT)
        if self.ids is not None:
            found = look_up(embedding, self.ids)
            launch(kernels.spread_rows, device, (batch, block), {"found": found, "noise": out.noise, **sizes}, **EXACT)


Builder: TypeAlias = Indices | Kernels


def build(builder: Builder, embedding: Embedding, verdict: Verdict, contexts: Contexts, out: Queries) -> None:
    """Fill `out` with the inputs of a verdict's blocks."""
    builder.build(embedding, verdict, contexts, out)


def why_not(drafter: Drafter, accepted: Tensor, counts: Tensor) -> str | None:
    """Why these verdicts are not taken."""
    if accepted.shape != drafter.queries.context_positions.shape or counts.shape != drafter.queries.counts.shape:
        return "the verdict has another shape than the buffers"
    if accepted.dtype != torch.int32 or counts.dtype != torch.int32:
        return "the verdict is not int32"
    if not (accepted.is_contiguous() and counts.is_contiguous()):
        return "the verdict's numbers do not lie side by side"
    embedding = drafter.target.embedding
    if isinstance(embedding, Tensor) and not embedding.is_contiguous():
        return "the embedding's rows do not lie side by side"
    if embedding.dtype != drafter.queries.noise.dtype:
        return "the embedding has another dtype than the block"
    return None


class OneLookup:
    """The switch; a hit is a block built."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._builders: WeakKeyDictionary[Drafter, Builder] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""
        return {"Drafter.build_queries": partial(guarded, fast=self.build_queries, why_not=why_not, counts=self.counts)}

    def allocated(self) -> int:
        """Bytes of all drafters' index buffers."""
        return sum(builder.nbytes() for builder in self._builders.values())

    def close(self) -> None:
        """Drop the index buffers."""
        self._builders.clear()

    def build_queries(self, drafter: Drafter, accepted: Tensor, counts: Tensor) -> None:
        """Fill the drafter's `queries`, as its own method would."""
        if (builder := self._builders.get(drafter)) is None:
            builder = self._builders[drafter] = builder_for(drafter)
        contexts = Contexts(drafter.context_lengths, drafter.slots, drafter.settings.draft_context)
        build(builder, drafter.target.embedding, (accepted, counts), contexts, drafter.queries)


def choose(embedding: Embedding, sizes: tuple[int, int, int], mask_token: int) -> Builder:
    """Kernels where they run, else PyTorch's operations, for B requests, blocks of S tokens and K + 1 verified rows."""
    batch, block, rows = sizes
    if why_no_kernels(embedding.device.type) is None:
        return Kernels.create(embedding, batch, mask_token)
    return Indices.create(batch, block, rows, mask_token, embedding.device)


def builder_for(drafter: Drafter) -> Builder:
    """What builds this drafter's blocks."""
    batch, block = drafter.queries.positions.shape
    mask, rows = drafter.settings.geometry.mask_token, drafter.queries.context_positions.shape[1]
    return choose(drafter.target.embedding, (batch, block, rows), mask)
