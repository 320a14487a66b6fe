"""What a campaign found, as people read it: the attribution of its arms, its gates, and what to doubt in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
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
    from spantrace.recording import Recording
    from spantrace.tables import Document, Fact

    Runs = defaultdict[str, list[Recording]]
    Loads = defaultdict[str, list[dict[str, float]]]

_FAILURES_SHOWN = 3


def check_gates(plan: Plan) -> None:
    """SpantraceError where the plan's gates cannot be judged on its arms."""
    if plan.gates:
        from analyzers.gates import check_arms, parse

        check_arms(parse(plan.gates), [arm.name for arm in plan.arms])


def show(store: Store, form: str, picture: Path | None, others: Sequence[Path], final: Path | None) -> None:
    """Print what the finished windows show, and exit with the gates' code, or 3 where windows are missing.

    With `others`, or a `final` one, what all these campaigns show together.
    """
    from spantrace.cli.wording import warn
    from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
    from spantrace.tables import Format
    from spantrace.terminal import emit

    found, runs = attributed(store)
    judged = _judged(store, found)
    document = _combined(store, found, others, final) if others or final else _document(store, found, judged)
    warn(document, Format(form))
    emit(document, Format(form))
    if picture:
        from spantrace.cli.plotting import plot

        plot(found, runs, picture)
    if missing := store.missing():
        raise SpantraceError(
            f"{len(missing)} of {len(store.windows)} windows are missing; spantrace ab {store.directory} measures them",
            EXIT_NOT_COMPARABLE,
        )
    if judged:
        from analyzers.gates import exit_code

        raise click.exceptions.Exit(exit_code(judged))


def attributed(store: Store) -> tuple[Attribution, Runs]:
    """The attribution of a campaign's finished windows, and their recordings by arm."""
    import optimized
    from analyzers.attribution import attribute

    runs, loads, contended = _windows(store)
    arms = [arm for arm in store.plan.arms if arm.name in runs]
    targets = {name: optimized.discover()[name].targets for arm in arms for name in arm.on}
    targets |= {arm.name: tuple(arm.delay) for arm in arms if arm.delay}
    return attribute(runs, {arm.name: arm.treatment for arm in arms}, targets, loads, contended), runs


def _judged(store: Store, found: Attribution) -> tuple[Judged, ...]:
    from analyzers.gates import judge, parse

    return judge(parse(store.plan.gates), found) if store.plan.gates else ()


def _document(store: Store, found: Attribution, judged: tuple[Judged, ...]) -> Document:
    """The attribution with the campaign's own facts."""
    from spantrace.cli.attributing import attribution_document

    document = attribution_document(found, judged)
    data = {**document.data, "campaign": _data(store)}
    return replace(document, facts=(*document.facts, *_facts(store)), data=data)


def _combined(store: Store, found: Attribution, others: Sequence[Path], final: Path | None) -> Document:
    """This campaign and others, each by its directory's name, the final one in a column of its own."""
    from analyzers.envelope import envelope
    from spantrace.campaign.store import Store, plan_of
    from spantrace.cli.combining import envelope_document

    directories = [*others, *([final] if final else [])]
    more = {str(one): attributed(Store(one, plan_of(one)))[0] for one in directories}
    return envelope_document(envelope({str(store.directory): found, **more}, str(final) if final else None))


def _windows(store: Store) -> tuple[Runs, Loads, dict[str, list[int]]]:
    """Recordings, load figures and indices of the contended windows of each arm that has any, in order of time."""
    from spantrace.loading import load

    runs: Runs = defaultdict(list)
    loads: Loads = defaultdict(list)
    contended: dict[str, list[int]] = defaultdict(list)
    for number, entry in store.done().items():
        recording = load(store.path(store.windows[number - 1]))
        if _contended(store.plan, recording, entry):
            contended[entry["arm"]].append(len(runs[entry["arm"]]))
        runs[entry["arm"]].append(recording)
        loads[entry["arm"]].append(entry["load"] or _own_load(recording))
    return runs, loads, contended


def _contended(plan: Plan, recording: Recording, entry: Mapping[str, Any]) -> bool:
    """The plan's rule: others used that much of the CPUs, or the GPU at all."""
    gpu = recording.header.get("gpu") or {}
    return bool(entry["others"] >= plan.contended or gpu.get("other_processes"))


def _own_load(recording: Recording) -> dict[str, float]:
    """What the steady cycles say of a load that nobody measured from outside."""
    from analyzers.economics import economics

    earned = economics(recording)
    if earned.ms_per_token is None or not earned.ms_per_emitted:
        return {}
    return {"itl_ms": earned.ms_per_token, "tokens_per_s": 1e3 / earned.ms_per_emitted}


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
