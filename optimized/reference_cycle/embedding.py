"""The table of embeddings, whole or shared out by vocabulary over the ranks of a process group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class VocabularyShard:
    """This rank's rows [n, hidden] of an embedding, from token `first` on; the other ranks hold the others.

    Every rank of the default process group must look up the same ids together.
    """

    rows: Tensor
    first: int

    @property
    def dtype(self) -> torch.dtype:
        """That of the rows."""
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        """That of the rows."""
        return self.rows.device

    def look_up(self, ids: Tensor) -> Tensor:
        """Embeddings [..., hidden] of ids int64 [...]: zeros for what others hold, summed over all ranks."""
        own = ids - self.first
        here = (own >= 0) & (own < len(self.rows))
        found = self.rows[own.clamp(0, len(self.rows) - 1)].masked_fill(~here.unsqueeze(-1), 0.0)
        torch.distributed.all_reduce(found)
        return found


Embedding: TypeAlias = Tensor | VocabularyShard


def look_up(embedding: Embedding, ids: Tensor) -> Tensor:
    """Embeddings [..., hidden] of ids int64 [...]."""
    return embedding[ids] if isinstance(embedding, Tensor) else embedding.look_up(ids)
