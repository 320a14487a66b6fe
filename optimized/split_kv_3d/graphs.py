"""The graphs of a model that was captured with either attention, and what they refer to: it outlives the switch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from optimized.captured import UNCAPTURED
from optimized.split_kv_3d.attention import Scratch

Size = tuple[int, int]
"""Requests and query tokens of a batch."""
ELSEWHERE = "the attention is not that of vLLM's Triton backend"


@dataclass(frozen=True)
class Variants:
    """A manager's graphs with vLLM's attention and with the split one, and by size why a batch keeps vLLM's."""

    stock: dict[Any, Any]
    split: dict[Any, Any]
    reasons: dict[Size, str | None]

    def why_not(self, batch: Any) -> str | None:
        """Why that batch replays vLLM's own."""
        if batch.uniform_token_count is None and getattr(batch, "max_query_len", None) is None:
            return "its graph is replayed for longer queries too"
        reason = self.reasons.get((batch.num_reqs, batch.num_tokens), ELSEWHERE)
        return reason if reason or batch in self.split else UNCAPTURED


@dataclass
class Kept:
    """By graph manager its variants, the names of the drafters' layers, and all buffers."""

    variants: WeakKeyDictionary[Any, Variants] = field(default_factory=WeakKeyDictionary)
    layers: set[str] = field(default_factory=set)
    scratch: list[tuple[tuple[Any, ...], int, Scratch]] = field(default_factory=list)

    def for_tokens(self, query: Tensor, tokens: int) -> Scratch:
        """Buffers for so many tokens of queries like these, [tokens, heads, head_dim]; made where there are none."""
        kind = query.device, *query.shape[1:]
        for other, room, scratch in self.scratch:
            if other == kind and room >= tokens:
                return scratch
        made = Scratch(tokens, query.shape[1], query.shape[2], query.device)
        self.scratch.append((kind, tokens, made))
        return made

    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(scratch.nbytes() for _, _, scratch in self.scratch)

    def give_back(self) -> None:
        """Let every manager replay vLLM's own graphs; without captured ones the buffers go too."""
        for manager, variants in self.variants.items():
            manager.graphs = variants.stock
        if not self.variants:
            self.scratch.clear()


kept = Kept()
