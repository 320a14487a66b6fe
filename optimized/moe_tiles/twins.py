"""The target's graphs with the tabled tile beside those with vLLM's own; they outlive the switch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from optimized.captured import UNCAPTURED

ELSEWHERE = "no experts of vLLM's Triton backend are in it"
OTHERS = "another optimization captures the target twice and chooses its graph"
BROKEN = "it failed before"
NOT_TWICE = "the graph that is captured is not captured twice"
UNASKED = "vLLM did not ask for a tile"


@dataclass(frozen=True)
class Twins:
    """A manager's graphs with vLLM's tile and, by batch, with ours; by tokens why there is none."""

    stock: dict[Any, Any]
    tiled: dict[Any, Any] = field(default_factory=dict)
    reasons: Mapping[int, str | None] = field(default_factory=dict)

    def why_not(self, graphs: object, batch: Any) -> str | None:
        """Why a manager that holds those graphs replays its own of that batch."""
        if graphs is not self.stock:
            return OTHERS
        reason = self.reasons.get(batch.num_tokens, ELSEWHERE)
        return reason if reason or batch in self.tiled else UNCAPTURED


kept: WeakKeyDictionary[Any, Twins] = WeakKeyDictionary()
"""By graph manager."""


def full_batches(manager: Any, tokens: Collection[int]) -> dict[Any, list[Any]]:
    """What a manager captures into FULL graphs of so many tokens, as it keeps it; empty where that is nothing."""
    full = {mode: batches for mode, batches in manager._capture_descs.items() if mode.name == "FULL"}
    found = {mode: [one for one in batches if one.num_tokens in tokens] for mode, batches in full.items()}
    return {mode: batches for mode, batches in found.items() if batches}


@contextmanager
def other_graphs(manager: Any, batches: dict[Any, list[Any]]) -> Iterator[dict[Any, Any]]:
    """While it lasts, the manager captures those batches alone, into the graphs that this gives."""
    graphs, every = manager.graphs, manager._capture_descs
    manager.graphs, manager._capture_descs = {}, batches
    try:
        yield manager.graphs
    finally:
        manager.graphs, manager._capture_descs = graphs, every
