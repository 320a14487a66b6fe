"""How often optimizations fired, and why they did not take the rest, as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spantrace.ranks import counts_by_rank, ranks
from spantrace.switched import Switched, switched
from spantrace.tables import Fact, many


def optimization_facts(header: Mapping[str, Any], label: str = "optimized") -> list[Fact]:
    """A line for each optimization that was on: its hits, in all and by rank, and why it did not take the rest."""
    found = switched(header)
    widest = max((len(one.id) for one in found), default=0)
    return [
        Fact(label, (f"{one.id.ljust(widest)}  {counted(one)}", *_by_rank(header, one.id), *_reasons(one)))
        for one in found
    ]


def _by_rank(header: Mapping[str, Any], name: str) -> list[str]:
    """Its hits on each rank, where there are several."""
    each = counts_by_rank(header).get(name, {})
    return [", ".join(f"rank {rank} {one['hits']:,}" for rank, one in each.items())] if len(ranks(header)) > 1 else []


def counted(one: Switched) -> str:
    """How often an optimization took a call, which sorts of hits are among them, and how often it did not."""
    failed = f", {many(one.errors, 'error')}" if one.errors else ""
    hits, fell = many(one.hits, "hit"), many(one.fallbacks, "fallback")
    told = ", ".join(f"{count:,} {sort}" for sort, count in one.sorts)
    return f"{hits}{f' ({told})' if told else ''}, {fell}{failed}"


def _reasons(one: Switched) -> list[str]:
    return [f"{count:,} because {reason}" for reason, count in one.reasons]
