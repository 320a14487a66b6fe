"""Sentences about the parts of CUDA graphs: how much of each graph they are, what marks cost, what is not timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantrace.tables import Fact, number

if TYPE_CHECKING:
    from analyzers.graph_parts import GraphParts, GraphSum

GOAL = 0.015
"""A larger residual, or a smaller one than its negative, is pointed out."""


def graph_facts(found: GraphParts | None) -> list[Fact]:
    """A line on what the parts of each span's graphs add up to, one on what is not timed; none where nobody asked."""
    if found is None:
        return []
    facts = [Fact("graph parts", _sum(one), "yellow" if abs(one.residual) > GOAL else "") for one in found.sums]
    missing = tuple(f"{name}: {why}" for name, why in found.missing.items())
    return [*facts, *([Fact("not timed", missing)] if missing else [])]


def _sum(one: GraphSum) -> tuple[str, ...]:
    costs = [f"{number(one.start_cost_us)} us a replay at start"] if one.start_cost_us is not None else []
    costs += [f"{number(one.cost_us)} us here"] if one.cost_us is not None else []
    share = "" if one.cost_share is None else f" ({one.cost_share:.1%})"
    return (
        f"{one.span} {number(one.parts_ms)} of {number(one.whole_ms)} ms, residual {one.residual:.1%}",
        f"in {one.cycles:,} cycles with {one.marks} marks, the first {number(one.launch_us)} us after the launch",
        *([f"marks cost {', '.join(costs)}{share}"] if costs else []),
    )
