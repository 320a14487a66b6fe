"""What a campaign found, as people read it: the attribution of its arms, its gates, and what to doubt in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from analyzers.attribution import Attribution
    from analyzers.gates import Judged
    from spantrace.campaign.plan import Plan
    from spantrace.campaign.store import Store
    from spantrace.cli.finished import Runs
    from spantrace.tables import Document, Fact

_FAILURES_SHOWN = 3


def check_gates(plan: Plan) -> None:
    """SpantraceError where the plan's gates cannot be judged on its arms."""
    if plan.gates:
        from analyzers.gates import check_arms, parse

        check_arms(parse(plan.gates), [arm.name for arm in plan.arms])


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

        together, doubts = combined(store, found, others, final)
        document = combined_document(together, doubts, judged)
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
    from spantrace.cli.attributing import attribution_document

    document = attribution_document(found, judged)
    data = {**document.data, "campaign": _data(store)}
    return replace(document, facts=(*document.facts, *_restored(store.plan, runs), *_facts(store)), data=data)


def _restored(plan: Plan, runs: Runs) -> list[Fact]:
    """How often stock was without the fixes that the plan restores, and which of them it was never without."""
    from optimized.optimization import STOCK_OF
    from spantrace.cli.fired import counted
    from spantrace.switched import KEY, Switched, from_counts, summed
    from spantrace.tables import Fact

    stock = plan.arms[0].name
    counts = summed(one for run in runs.get(stock, ()) for one in run.header.get(KEY) or ())
    known = {one["id"]: from_counts(one) for one in counts}
    found = [known.get(STOCK_OF + name, Switched(STOCK_OF + name, 0, 0, 0, ())) for name in plan.restore]
    facts = [Fact("restored", tuple(f"{stock}: {one.id} {counted(one)}" for one in found))] if found else []
    warnings = tuple(f"{stock}: {one.warning}" for one in found if one.warning)
    return facts + ([Fact("NEVER FIRED", warnings, "red")] if warnings else [])


def _facts(store: Store) -> list[Fact]:
    from spantrace.cli.wording import DOUBT_STYLES
    from spantrace.tables import Fact, percent

    plan, done = store.plan, store.done()
    gates = [f"gates {store.created()['gates'][:6]} written {_clock(store.created()['at'])}"] if plan.gates else []
    codes = {arm.name: entry["code"][:6] for entry in done.values() for arm in plan.arms if arm.name == entry["arm"]}
    others = [entry["others"] for entry in done.values()]
    facts = [
        Fact("campaign", (f"plan {plan.hash[:6]}", *gates, f"first window {_clock(store.first_started())}",
                          f"{len(done)} of {len(store.windows)} windows")),
        Fact("code", tuple(f"{name} {code}" for name, code in codes.items())),
        Fact("others", (f"other processes used {percent(min(others))} to {percent(max(others))} of the CPUs",
                        f"a run is contended from {percent(plan.contended)}")),
    ]  # fmt: skip
    if notes := Counter(note for entry in done.values() for note in entry["notes"]):
        facts.append(
            Fact("noted", tuple(f"{text} ({count} windows)" for text, count in notes.items()), DOUBT_STYLES[0])
        )
    failures = store.failures()
    if failures:
        first = [f"window {one.window} ({one.arm}): {one.why}" for one in failures[:_FAILURES_SHOWN]]
        more = [f"and {len(failures) - len(first)} more"] if len(failures) > len(first) else []
        facts.append(
            Fact(
                "failed",
                (f"{len(failures)} {'try' if len(failures) == 1 else 'tries'}", *first, *more),
                DOUBT_STYLES[0],
            )
        )
    return facts


def _clock(at: str) -> str:
    """The time of day of a log's time."""
    return at[11:19]


def _data(store: Store) -> dict[str, Any]:
    created = store.created()
    return {
        "plan": store.plan.hash,
        "gates": created["gates"],
        "created": created["at"],
        "first_window": store.first_started(),
        "windows": len(store.windows),
        "done": list(store.done().values()),
        "failures": store.failures(),
    }
