"""Verify K + 1 rows a request instead of 2K: the rows after the last draft are fillers that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.optimization import Agreement, Optimization, Switch, needs_package
from optimized.seams import Seam

if TYPE_CHECKING:
    from optimized.cases import Case, Contest
    from optimized.reference_cycle.settings import Settings


def _memory(settings: Settings) -> int:
    """The target's input buffers for K + 1 rows, next to those for 2K."""
    if settings.speculative < 2:
        return 0
    batch, rows = settings.batch, settings.speculative + 1
    return batch * (8 * (4 * rows + 1) + 4 * settings.table_width + rows * settings.capacity)


def _switch() -> Switch:
    from optimized.verify_k_plus_one.rows import FewerRows

    return FewerRows()


def _cases() -> list[Case]:
    from optimized.verify_k_plus_one.reference import cases

    return cases()


def _contest(settings: Settings) -> Contest:
    from optimized.verify_k_plus_one.contest import contest

    return contest(settings)


OPTIMIZATION = Optimization(
    id="verify-k-plus-one",
    summary="the target verifies K + 1 rows a request, without the K - 1 fillers behind the drafts",
    seed="TensorRT-LLM PR 13995",
    figure="+14.5% tokens/s per GPU at batch 64, K = 3, claimed there",
    targets=("target.input_prep", "target.metadata.attention", "target.forward", "sample"),
    seams=(Seam("optimized.reference_cycle.target:Target.rows_per_request"),),
    requirements=(needs_package("torch"),),
    guard="K is at least 2; with K = 1 there is no filler, without a drafter there is no draft",
    agreement=Agreement.TOLERANT,
    memory=_memory,
    live_switchable=True,
    switch=_switch,
    cases=_cases,
    contest=_contest,
)
