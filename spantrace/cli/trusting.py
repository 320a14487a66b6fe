"""Sentences about whether a recording can be believed: what it lost, of how many cycles it knows what, what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantrace.cli.wording import DOUBT_STYLES
from spantrace.tables import Fact, number

if TYPE_CHECKING:
    from analyzers.trust import Trust


def trust_facts(found: Trust, created: str) -> list[Fact]:
    """What the recording lost, does not explain and cost; doubts on lines of their own, the worst in red."""
    residuals = {"cycle": found.residual, **found.residuals}
    residual = ", ".join(f"{name} {value:.1%}" for name, value in residuals.items() if value is not None)
    parts = [f"lost rows {found.lost:,}", f"hook errors {found.hook_errors:,}"]
    parts += [f"residual: {residual or 'unknown'}", _own_cost(found, created[:10] or "then"), *_known(found)]
    if found.missing:
        parts.append(f"not hooked on this vLLM: {', '.join(found.missing)}")
    return [Fact("trust", tuple(parts)), *doubt_facts(found)]


def doubt_facts(found: Trust) -> list[Fact]:
    """Each doubt on a line of its own, the worst in red."""
    return [
        Fact("DO NOT QUOTE" if doubt.refuse else "doubt", (doubt.text,), DOUBT_STYLES[doubt.refuse])
        for doubt in found.doubts
    ]


def _own_cost(found: Trust, when: str) -> str:
    """What recording took of a cycle in detail and, where not all were, of a cycle on average."""
    if found.own_cost_us is None:
        return "own cost not calibrated"
    span = f", {found.host_span_ns:.0f} ns a span" if found.host_span_ns is not None else ""
    cost = f"own cost at least {number(found.own_cost_us)} us a cycle"
    if found.detail_cycles < found.cycles and found.mean_cost_us is not None:
        mean = f", {number(found.mean_cost_us)} on average{_part(found.mean_cost_share)}"
        return f"{cost} in detail{_part(found.own_cost_share)}{mean}{span}, calibrated {when}"
    return f"{cost}{_part(found.own_cost_share)}{span}, calibrated {when}"


def _part(share: float | None) -> str:
    return "" if share is None else f" ({share:.2%})"


def _known(found: Trust) -> list[str]:
    """Of how many cycles spans and GPU are known, where not of all, and what recording them did to the period."""
    parts = []
    if found.detail_cycles < found.cycles:
        told = f"spans known in {found.detail_cycles:,} of {found.cycles:,} cycles"
        if found.detail_period_ms and found.period_ms:
            told += f", which take {number(found.detail_period_ms)} ms, all {number(found.period_ms)}"
        parts.append(told)
    if found.gpu_cycles is not None and found.gpu_cycles < found.detail_cycles:
        parts.append(f"GPU timed in {found.gpu_cycles:,} of {found.detail_cycles:,} cycles")
    return parts
