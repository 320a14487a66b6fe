"""Sentences about the parts of CUDA graphs: how much of each graph they are, what marks cost, what is not timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantrace.tables import Fact, number

if TYPE_CHECKING:
    from analyzers.graph_parts import GraphParts, GraphSum

GOAL = 0.015
"""A larger residual, or a smaller one than its negative, is pointed out."""


def graph_facts(found: GraphParts | None) -> list[Fact]:
    """A line for each span's graphs, and one for what has no time of its own; none where nobody asked."""
    if found is None:
        return []
    sums = [Fact("graph parts", (_sum(one),), "yellow" if abs(one.residual) > GOAL else "") for one in found.sums]
    missing = tuple(f"{name}: {why}" for name, why in found.missing.items())
    return [*sums, *([Fact("not timed", missing)] if missing else [])]


def _sum(one: GraphSum) -> str:
    text = f"{one.span} {number(one.parts_ms)} of {number(one.whole_ms)} ms, residual {one.residual:.1%}"
    text += f", first mark {number(one.launch_us)} us after the launch, in {one.cycles:,} cycles with {one.marks} marks"
    if one.start_cost_us is not None:
        text += f", which cost {number(one.start_cost_us)} us a replay at start"
    if one.cost_us is not None:
        text += f"{',' if one.start_cost_us is None else ' and'} {number(one.cost_us)} us here"
    return text if one.cost_share is None else f"{text} ({one.cost_share:.1%})"
