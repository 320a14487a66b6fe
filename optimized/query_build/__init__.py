"""Build the drafter's block with one embedding lookup of the newest tokens and a single mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.optimization import Agreement, Optimization, Switch, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.cases import Case, Contest
    from optimized.reference_cycle.settings import Settings


def _memory(settings: Settings) -> int:
    """The ids to look up and two ranges, int64."""
    if settings.drafter == "none":
        return 0
    block = settings.speculative + (settings.drafter == "dflash")
    return 8 * (settings.batch + 1 + block + settings.speculative + 1)


def _switch() -> Switch:
    from optimized.query_build.lookup import OneLookup

    return OneLookup()


def _cases() -> list[Case]:
    from optimized.query_build.reference import cases

    return cases()


def _contest(settings: Settings) -> Contest:
    from optimized.query_build.contest import contest

    return contest(settings)


OPTIMIZATION = Optimization(
    id="query-build",
    summary="one embedding lookup of every request's newest token and one mask, in place of the whole block's",
    seed="TensorRT-LLM PR 13995",
    figure="about 10 small operations a cycle become a few and one lookup; no figure of its own is claimed there",
    targets=("draft.input_prep",),
    seams=(Seam("optimized.reference_cycle.drafter:Drafter.build_queries"),),
    requirements=(needs_package("torch"),),
    guard="the accepted tokens have the shape and type that the buffers were made for",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    switch=_switch,
    cases=_cases,
    contest=_contest,
)
