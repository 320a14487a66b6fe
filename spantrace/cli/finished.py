"""The finished windows of a campaign, and what they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzers.attribution import Attribution
    from spantrace.campaign.plan import Plan
    from spantrace.campaign.store import Store
    from spantrace.recording import Recording

    Runs = dict[str, list[Recording]]


def attributed(store: Store) -> tuple[Attribution, Runs]:
    """The attribution of a campaign's finished windows, and their recordings by arm."""
    import optimized
    from analyzers.attribution import attribute

    windows, arms = _windows(store), store.plan.arms
    found = attribute(
        windows.runs,
        {arm.name: frozenset(arm.on) for arm in arms},
        {name: optimized.discover()[name].targets for arm in arms for name in arm.on},
        windows.loads,
        windows.contended,
        rounds=windows.rounds,
        apart={arm.name: tuple(arm.delay) for arm in arms if arm.restarts or arm.delay},
        uncounted=store.plan.restore,
    )
    return found, windows.runs


@dataclass(frozen=True)
class _Windows:
    """Recordings, load figures and rounds of each arm's finished windows in order of time, with the contended ones."""

    runs: Runs
    loads: dict[str, list[dict[str, float]]]
    rounds: dict[str, list[int]]
    contended: dict[str, list[int]]


def _windows(store: Store) -> _Windows:
    from analyzers.economics import own_load

    names = [arm.name for arm in store.plan.arms]
    found = _Windows({name: [] for name in names}, {name: [] for name in names}, {name: [] for name in names}, {})
    order = [window.arm.name for window in store.windows]
    for number, entry in store.done().items():
        name, recording = order[number - 1], store.recording(number)
        if _contended(store.plan, recording, entry):
            found.contended.setdefault(name, []).append(len(found.runs[name]))
        found.runs[name].append(recording)
        found.loads[name].append(entry["load"] or own_load(recording)[0])
        found.rounds[name].append(order[: number - 1].count(name))
    return found


def _contended(plan: Plan, recording: Recording, entry: Mapping[str, Any]) -> bool:
    """The plan's rule: others used that much of the CPUs, or the GPU at all."""
    gpu = recording.header.get("gpu") or {}
    return bool(entry["others"] >= plan.contended or gpu.get("other_processes"))
