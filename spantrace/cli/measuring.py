"""How the windows of a campaign were measured: their code, their neighbours, what was restored, noted and failed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from spantrace.cli.wording import DOUBT_STYLES
from spantrace.tables import Fact, many, percent

if TYPE_CHECKING:
    from spantrace.campaign.plan import Plan
    from spantrace.campaign.store import Store
    from spantrace.cli.finished import Runs

_FAILURES_SHOWN = 3


def restored(plan: Plan, runs: Runs) -> list[Fact]:
    """How often stock was without the fixes that the plan restores, and which of them it was never without."""
    from optimized.optimization import STOCK_OF
    from spantrace.cli.fired import counted
    from spantrace.switched import Switched, counted_in

    stock = plan.arms[0].name
    known = counted_in(run.header for run in runs.get(stock, ()))
    found = [known.get(STOCK_OF + name, Switched(STOCK_OF + name, 0, 0, 0, ())) for name in plan.restore]
    facts = [Fact("restored", tuple(f"{stock}: {one.id} {counted(one)}" for one in found))] if found else []
    warnings = tuple(f"{stock}: {one.warning}" for one in found if one.warning)
    return facts + ([Fact("NEVER FIRED", warnings, "red")] if warnings else [])


def codes(store: Store) -> dict[str, str]:
    """The first digits of the hash of the code that each arm ran, in the plan's order."""
    ran = {entry["arm"]: entry["code"][:6] for entry in store.done().values()}
    return {arm.name: ran[arm.name] for arm in store.plan.arms if arm.name in ran}


def facts(store: Store) -> list[Fact]:
    """Plan, code and neighbours of the finished windows, and what went wrong."""
    plan, done = store.plan, store.done()
    gates = [f"gates {store.created()['gates'][:6]} written {_clock(store.created()['at'])}"] if plan.gates else []
    others = [entry["others"] for entry in done.values()]
    return [
        Fact("campaign", (f"plan {plan.hash[:6]}", *gates, f"first window {_clock(store.first_started())}",
                          f"{len(done)} of {many(len(store.windows), 'window')}")),
        Fact("code", tuple(f"{name} {code}" for name, code in codes(store).items())),
        Fact("others", (f"other processes used {percent(min(others))} to {percent(max(others))} of the CPUs",
                        f"a run is contended from {percent(plan.contended)}, or by one on its GPU")),
        *wrong(store),
    ]  # fmt: skip


def wrong(store: Store) -> list[Fact]:
    """What was noted of the finished windows, and the tries that failed."""
    found = []
    if notes := Counter(note for entry in store.done().values() for note in entry["notes"]):
        parts = tuple(f"{text} ({many(count, 'window')})" for text, count in notes.items())
        found.append(Fact("noted", parts, DOUBT_STYLES[0]))
    if failures := store.failures():
        first = [f"window {one.window} ({one.arm}): {one.why}" for one in failures[:_FAILURES_SHOWN]]
        more = [f"and {len(failures) - len(first)} more"] if len(failures) > len(first) else []
        found.append(Fact("failed", (many(len(failures), "try", "tries"), *first, *more), DOUBT_STYLES[0]))
    return found


def _clock(at: str) -> str:
    """The time of day of a log's time."""
    return at[11:19]


def data(store: Store) -> dict[str, Any]:
    """A campaign as JSON has it: its plan, and what the log says of each window."""
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
