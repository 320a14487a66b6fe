"""What is compared between arms: a name and where it was measured, with one series of values per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analyzers.co_saturation import gpu_busy, host_parts, known_cycles
from analyzers.per_cycle import STEADY, Floats, PerCycle, chosen_cycles, measure, periods
from analyzers.span_table import BETWEEN, GPU_IDLE, UNATTRIBUTED
from analyzers.statistics import BLOCKS, block_medians
from spantrace.recording import Recording
from spantrace.spans import OVERLAID, PARENT, SPAN_NAMES, WAITS, Kind, Track

Where = Literal["host", "gpu", "own", "run"]
WAITING = "host waits"
ACCEPTANCE = "acceptance"
PARENTS = tuple(name for name in SPAN_NAMES if name != "cycle" and name in PARENT.values())


@dataclass(frozen=True)
class Quantity:
    """A name and where it was measured; per cycle in ms, but for a figure of a whole run.

    "host" and "gpu" are clocks, "own" is a parent's host time less its children's, "run" a figure such as `itl_ms`.
    """

    name: str
    where: Where

    def __str__(self) -> str:
        return self.name if self.where == "run" else f"{self.name}.{self.where}"


CYCLE = Quantity("cycle", "host")
BALANCE = (
    Quantity(WAITING, "host"),
    Quantity(UNATTRIBUTED, "host"),
    Quantity(BETWEEN, "host"),
    Quantity(GPU_IDLE, "gpu"),
)
"""What is left of the period: where a saving goes that does not come out of the cycle."""
Units = dict[Quantity, Floats]


def span_series(recording: Recording, kinds: frozenset[Kind]) -> dict[tuple[str, Track], Floats]:
    """Every span's nanoseconds per cycle where that is known; the cycle's are its period, and its busy time on the GPU.

    Periods are those of all cycles of `kinds`, all else is of those in detail.
    """
    return _span_series(recording, measure(recording, kinds), kinds)


def _span_series(recording: Recording, cycle: PerCycle, kinds: frozenset[Kind]) -> dict[tuple[str, Track], Floats]:
    found = {(name, track): cycle.of(name, track) for name in SPAN_NAMES for track in Track}
    found["cycle", Track.HOST] = cycle.period
    busy = gpu_busy(recording, kinds)
    if busy is not None:
        found["cycle", Track.GPU] = busy
    return {key: values for key, values in found.items() if not np.isnan(values).all()}


def series(recording: Recording, kinds: frozenset[Kind] = STEADY) -> Units:
    """All quantities of one run that have a value per cycle, in ms."""
    cycle = measure(recording, kinds)
    found: Units = {
        Quantity(name, "gpu" if track is Track.GPU else "host"): values
        for (name, track), values in _span_series(recording, cycle, kinds).items()
    }
    found |= {Quantity(name, "own"): own for name in PARENTS if (own := _own(cycle, name)) is not None}
    parts = host_parts(recording, kinds)
    left = (parts["wait"], parts["unattributed"], parts["between"])
    found |= dict(zip(BALANCE, left, strict=False))
    if (busy := gpu_busy(recording, kinds)) is not None:
        found[BALANCE[3]] = periods(recording)[known_cycles(recording, kinds)] - busy
    return {key: values / 1e6 for key, values in found.items()}


def _own(cycle: PerCycle, name: str) -> Floats | None:
    whole, children = cycle.of(name), [child for child, above in PARENT.items() if above == name]
    present = [child for child in children if not np.isnan(cycle.of(child)).all()]
    if not present or np.isnan(whole).all():
        return None
    inside: Floats = np.nansum([cycle.of(child) for child in present], axis=0)
    return whole - inside


def units(runs: Sequence[Recording], loads: Sequence[Mapping[str, float]] = (), *, blocks: bool = False) -> Units:
    """One value per quantity and run, the median over its cycles, NaN where a run lacks it; with `blocks` of one run,
    one value per block of cycles."""
    each = [series(run) for run in runs]
    keys = dict.fromkeys(key for one in each for key in one)
    empty = np.full(1, np.nan)
    found: Units = {}
    for key in keys:
        values = [one.get(key, empty) for one in each]
        found[key] = block_medians(values[0]) if blocks else np.array([_median(value) for value in values])
    found[Quantity(ACCEPTANCE, "run")] = np.array(_lengths(runs, blocks))
    missing: list[Mapping[str, float]] = [{}] * (len(runs) - len(loads))
    for name in dict.fromkeys(name for load in loads for name in load):
        found[Quantity(name, "run")] = np.array([load.get(name, np.nan) for load in [*loads, *missing]])
    return {key: values for key, values in found.items() if not np.isnan(values).all()}


def placed(values: Units, rounds: Sequence[int], count: int) -> Units:
    """The values of windows at the places of their rounds, from 0, of `count` rounds; NaN where there is none."""
    found: Units = {}
    for key, some in values.items():
        found[key] = np.full(count, np.nan)
        found[key][list(rounds)] = some
    return found


def in_rounds(controls: Sequence[Units], treated: Units) -> tuple[Units, Units]:
    """Equal arms as one side, [arms, rounds], and an arm that took turns with them, [rounds]; NaN where one did not."""
    shared = [key for key in controls[0] if all(key in one for one in controls)]
    return {key: np.stack([one[key] for one in controls]) for key in shared}, treated


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.nan


def _lengths(runs: Sequence[Recording], split: bool) -> list[float]:
    """Tokens per request and cycle that verified drafts, of each run, or of blocks of one."""
    parts = []
    for run in runs:
        chosen = np.flatnonzero(chosen_cycles(run, STEADY) & (run.cycles.drafting > 0))
        blocks = [part for part in np.array_split(chosen, BLOCKS) if len(part)] if split else [chosen]
        parts += [
            1 + float(run.cycles.accepted[block].sum() / run.cycles.drafting[block].sum()) if len(block) else np.nan
            for block in blocks
        ]
    return parts


def lineage(names: frozenset[str]) -> frozenset[str]:
    """These spans, all that enclose them and all inside them."""
    above = {name for one in names for name in _chain(one)}
    return frozenset(above | {name for name in SPAN_NAMES if names & set(_chain(name))})


def _chain(name: str) -> list[str]:
    parent = PARENT[name]
    return [name, *(_chain(parent) if parent else [])]


def outermost(names: frozenset[str]) -> tuple[str, ...]:
    """Those of these spans that lie in no other one of them."""
    return tuple(name for name in SPAN_NAMES if name in names and not names & set(_chain(name)[1:]))


def untouched(targets: frozenset[str]) -> tuple[str, ...]:
    """The outermost spans that neither are, nor enclose, nor lie in a target; no waits, which answer to all else."""
    apart = lineage(targets) | WAITS | OVERLAID | {"cycle"}
    return outermost(frozenset(SPAN_NAMES) - apart)


def total(values: Units, names: Sequence[str], where: Where) -> Floats | None:
    """The sum of some spans per run, a span that a run lacks counting nothing; None if no run has any of them.

    NaN where there is no run: it has no cycle.
    """
    found = [values[key] for name in names if (key := Quantity(name, where)) in values]
    if not found or len({one.shape for one in found}) > 1:
        return None
    summed: Floats = np.nansum(found, axis=0)
    cycle = values[CYCLE]
    return np.where(np.isnan(cycle), np.nan, summed) if cycle.shape == summed.shape else summed
