"""What a campaign found, as people read it: the attribution of its arms, its gates, and what to doubt in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from analyzers.attribution import Attribution
    from analyzers.gates import Gates, Judged
    from spantrace.campaign.plan import Plan
    from spantrace.campaign.store import Store
    from spantrace.cli.finished import Runs
    from spantrace.tables import Document
_OF_A_LOAD = frozenset({"ttft_ms", "latency_ms", "cached_tokens"})
"""What only the load on a server shows."""


def check_gates(plan: Plan) -> None:
    """SpantraceError where the plan's gates cannot be judged on its arms."""
    if plan.gates:
        from analyzers.gates import check_arms, parse

        gates = parse(plan.gates)
        check_arms(gates, [arm.name for arm in plan.arms])
        _refuse_unmeasured(gates, plan.target)


def _refuse_unmeasured(gates: Gates, target: str) -> None:
    """SpantraceError for a gate on what no window of the target can give."""
    from spantrace.campaign.plan import BUILT_IN
    from spantrace.errors import SpantraceError

    if target != BUILT_IN:
        return
    for gate in gates.gates:
        if gate.check.quantity.name in _OF_A_LOAD:
            what = gate.check.quantity.name.removesuffix("_ms")
            raise SpantraceError(f"gate {gate.text!r} cannot be judged: the built-in cycle has no {what}, a server has")


def check_results(store: Store, picture: Path | None, others: Sequence[Path], final: Path | None) -> None:
    """SpantraceError where the result could not be drawn, or combined with those campaigns; before it is measured."""
    if picture:
        from spantrace.cli.plotting import check_picture

        check_picture(picture)
    if others or final:
        from spantrace.cli.combining import check_campaigns

        check_campaigns(store, others, final)


def show(store: Store, form: str, picture: Path | None, others: Sequence[Path], final: Path | None) -> None:
    """Print what the finished windows show, and exit with the gates' code, or 3 where windows are missing.

    With `others`, or a `final` one, what all these campaigns show together, which has a say in the exit code.
    """
    from analyzers.gates import exit_code
    from spantrace.cli.finished import attributed
    from spantrace.cli.wording import warn
    from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
    from spantrace.tables import Format
    from spantrace.terminal import emit

    found, runs = attributed(store)
    judged = _judged(store, found)
    codes = {exit_code(judged)}
    if others or final:
        from spantrace.cli.combining import combined, combined_document

        together, about = combined(store, (found, runs), others, final)
        document = combined_document(together, about, judged)
        codes.add(together.exit_code)
    else:
        document = _document(store, found, judged, runs)
    warn(document, Format(form))
    emit(document, Format(form))
    code = min(codes - {0}, default=0)
    if picture:
        _draw(found, runs, picture, code)
    if missing := store.missing():
        raise SpantraceError(
            f"{len(missing)} of {len(store.windows)} windows are missing; spantrace ab {store.directory} measures them",
            EXIT_NOT_COMPARABLE,
        )
    if code:
        raise click.exceptions.Exit(code)


def _draw(found: Attribution, runs: Runs, picture: Path, code: int) -> None:
    """Draw the plot; where that fails, the exit code is still the gates'."""
    from spantrace.cli.plotting import plot
    from spantrace.errors import SpantraceError

    try:
        plot(found, runs, picture)
    except SpantraceError as error:
        raise SpantraceError(str(error), code or error.exit_code) from error


def _judged(store: Store, found: Attribution) -> tuple[Judged, ...]:
    from analyzers.gates import judge, parse

    return judge(parse(store.plan.gates), found) if store.plan.gates else ()


def _document(store: Store, found: Attribution, judged: tuple[Judged, ...], runs: Runs) -> Document:
    """The attribution with the campaign's own facts."""
    from spantrace.cli import measuring
    from spantrace.cli.attributing import attribution_document

    document = attribution_document(found, judged)
    about = (*document.facts, *measuring.restored(store.plan, runs), *measuring.facts(store))
    return replace(document, facts=about, data={**document.data, "campaign": measuring.data(store)})
