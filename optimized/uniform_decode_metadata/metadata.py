"""The shortcut's two halves in plain PyTorch: when a step is all decodes, and offsets that are kept between steps."""

from __future__ import annotations

import torch
from torch import Tensor


def why_not(is_prefilling: Tensor, longest_query: int, decode_threshold: int) -> str | None:
    """Why a batch must be sorted; None where every request, bool [B] on the CPU, surely is a decode."""
    if longest_query > decode_threshold:
        return "a query is longer than a decode's"
    if True in is_prefilling.tolist():
        return "a request is still prefilling"
    return None


class Offsets:
    """0 .. n - 1 as int32 on each device, made once."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.device, int], Tensor] = {}

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(offsets.nbytes for offsets in self._kept.values())

    def clear(self) -> None:
        """Let go of them."""
        self._kept.clear()

    def rows(self, lengths: Tensor, block_size: int, count: int) -> Tensor:
        """The `count` blocks of each request from the one that holds its last token on, int64 [B, count].

        `lengths` is int32 [B]; a request without tokens gets its first ones. They are columns of its block table.
        """
        first = (lengths - 1) // block_size
        first.clamp_(min=0)
        return (first.unsqueeze(1) + self._offsets(lengths.device, count)).to(torch.int64)

    def _offsets(self, device: torch.device, count: int) -> Tensor:
        offsets = self._kept.get((device, count))
        if offsets is None:
            offsets = self._kept[device, count] = torch.arange(count, device=device, dtype=torch.int32)
        return offsets
