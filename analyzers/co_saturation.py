"""Who bounds the cycle: the host, the GPU, both, neither; and what less work on either side can win at most."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from analyzers.per_cycle import (
    STEADY,
    Floats,
    Ints,
    Mask,
    Union,
    chosen_cycles,
    gpu_rows,
    host_rows,
    intervals,
    periods,
    processes_of,
    timed_cycles,
    work,
)
from analyzers.statistics import Cost, cost
from spantrace.recording import Recording
from spantrace.spans import GraphMode, Kind, Track

BUSY = 0.90
"""A side whose share of the period is at least this counts as saturated."""
ELSEWHERE = 0.10
"""More than this share of the period outside the cycle means that the bound lies outside host and GPU."""
NOTHING = 0.01
"""A possible saving below this share of the period is called nothing."""
STEP_MS = 1.0
"""The saving that the verdict prices."""


class Verdict(Enum):
    """Who bounds the cycle."""

    HOST_BOUND = "host-bound"
    GPU_BOUND = "GPU-bound"
    CO_SATURATED = "co-saturated"
    ALTERNATING = "host and GPU take turns"
    ELSEWHERE = "bound elsewhere"
    HOST_ONLY = "host only"
    GPU_ONLY = "GPU only"


@dataclass(frozen=True)
class ProcessWork:
    """One process's host work per cycle."""

    role: str
    work: Cost


@dataclass(frozen=True)
class CoSaturation:
    """Time per cycle, and the verdict it gives.

    `host` is time in which any of the server's processes works inside a span, `wait` time in which none works and one
    waits, `unattributed` time inside the cycle in neither, `between` from one cycle's end to the next one's start.
    `occupied` is the cycle's length less its waits: the host is at least not known to be waiting. `gpu` is the
    union of the GPU spans: an upper bound on what they keep it busy, since an event pair includes the gaps
    between kernels. Of a trace's kernels and copies it is the time itself, `kernels` that of kernels alone. `gpu` and
    `idle` are None without a GPU track, `kernels` where it is of event pairs.
    """

    verdict: Verdict
    period: Cost
    host: Cost
    wait: Cost
    unattributed: Cost
    between: Cost
    occupied: Cost
    gpu: Cost | None
    kernels: Cost | None
    idle: Cost | None
    processes: tuple[ProcessWork, ...]
    full_graphs: bool

    @property
    def host_known(self) -> bool:
        """Whether any span says what the host does: a trace may have none."""
        return _told(self.host, self.wait)

    @property
    def host_win(self) -> float | None:
        """What 1 ms less host work can win at most, in ms: the GPU's mean idle time; None where a track is missing."""
        return None if self.idle is None or not self.host_known else min(STEP_MS, self.idle.share * self.period.ms)

    @property
    def gpu_win(self) -> float | None:
        """What 1 ms less GPU work can win at most, in ms: the host's mean wait; None where a track is missing."""
        return None if self.gpu is None or not self.host_known else min(STEP_MS, self.wait.share * self.period.ms)


def co_saturation(recording: Recording, kinds: frozenset[Kind] = STEADY) -> CoSaturation | None:
    """Measure the cycles of `kinds` whose spans and period are known; None if there are none.

    Work is attributed to a period by time, not by the cycle that launched it: with async scheduling
    the GPU runs cycle k while the host is in cycle k+1.
    """
    low, _, high = windows(recording, kinds)
    if not len(low):
        return None
    period = (high - low).astype(np.float64)

    def priced(values: Floats) -> Cost:
        known = ~np.isnan(values)
        found = cost(values[known], period[known])
        assert found is not None
        return found

    host = {name: priced(values) for name, values in host_parts(recording, kinds).items()}
    busy = gpu_busy(recording, kinds)
    busy = None if busy is None or np.isnan(busy).all() else busy
    gpu = None if busy is None else priced(busy)
    return CoSaturation(
        verdict=_verdict(host, gpu),
        **host,
        gpu=gpu,
        kernels=None if (alone := _kernels_alone(recording, kinds)) is None else priced(alone),
        idle=None if busy is None else priced(period - busy),
        processes=tuple(
            ProcessWork(role, priced(work)) for role, work in _work_by_process(recording, low, high).items()
        ),
        full_graphs=bool(np.mean(recording.cycles.graph_mode[known_cycles(recording, kinds)] == GraphMode.FULL) > 0.5),
    )


def known_cycles(recording: Recording, kinds: frozenset[Kind]) -> Mask:
    """Which cycles are of `kinds`, in detail and have a known period, [cycles]."""
    return chosen_cycles(recording, kinds) & recording.cycles.detail & (periods(recording) > 0)


def windows(recording: Recording, kinds: frozenset[Kind]) -> tuple[Ints, Ints, Ints]:
    """Start, end and next cycle's start of the known cycles, ns."""
    chosen, cycles = known_cycles(recording, kinds), recording.cycles
    return cycles.start[chosen], cycles.end[chosen], cycles.start[chosen] + cycles.period[chosen]


def gpu_busy(recording: Recording, kinds: frozenset[Kind] = STEADY, among: Mask | None = None) -> Floats | None:
    """Time in GPU spans per known cycle, ns; NaN where that is not known whole, None without a GPU track.

    A cycle's period holds GPU work of its neighbours too, so that they must have been timed as well. Of all GPU spans
    those `among` these rows [spans] count.
    """
    gpu = recording.spans.track == Track.GPU if among is None else among
    low, _, high = windows(recording, kinds)
    if not gpu.any():
        return None
    busy = Union(*intervals(recording, gpu)).within(low, high)
    timed = timed_cycles(recording)
    whole = timed & np.append(True, timed[:-1]) & np.append(timed[1:], True)
    return np.where((busy > 0) & whole[known_cycles(recording, kinds)], busy, np.nan)


def _kernels_alone(recording: Recording, kinds: frozenset[Kind]) -> Floats | None:
    """Time in kernels per known cycle, ns; None where the GPU's spans are not of kernels."""
    rows = gpu_rows(recording, "kernels")
    busy = gpu_busy(recording, kinds, rows) if rows.any() else None
    return None if busy is None or np.isnan(busy).all() else busy


def host_parts(recording: Recording, kinds: frozenset[Kind]) -> dict[str, Floats]:
    """What the host does with each known cycle's period, ns, by the names of `CoSaturation`'s fields."""
    low, inside, high = windows(recording, kinds)
    working = Union(*work(recording))
    attributed = Union(*intervals(recording, host_rows(recording, waits=True)))
    worked, attributed_inside = working.within(low, high), attributed.within(low, inside)
    period, length = (high - low).astype(np.float64), (inside - low).astype(np.float64)
    return {
        "period": period,
        "host": worked,
        "wait": attributed.within(low, high) - worked,
        "unattributed": length - attributed_inside,
        "between": period - length,
        "occupied": length - attributed_inside + working.within(low, inside),
    }


def _told(work: Cost, wait: Cost) -> bool:
    return work.share + wait.share > 0


def _verdict(host: dict[str, Cost], gpu: Cost | None) -> Verdict:
    if gpu is None:
        return Verdict.HOST_ONLY
    if not _told(host["host"], host["wait"]):
        return Verdict.GPU_ONLY
    host_full, gpu_full = host["occupied"].share >= BUSY, gpu.share >= BUSY
    if host_full and gpu_full:
        return Verdict.CO_SATURATED
    if host_full or gpu_full:
        return Verdict.HOST_BOUND if host_full else Verdict.GPU_BOUND
    return Verdict.ELSEWHERE if host["between"].share > ELSEWHERE else Verdict.ALTERNATING


def _work_by_process(recording: Recording, low: Ints, high: Ints) -> dict[str, Floats]:
    header, process = recording.header, processes_of(recording)
    worked = host_rows(recording, waits=False)
    numbers = list(dict.fromkeys(int(lane["process"]) for lane in header.get("lanes") or [])) or [0]
    known = header.get("processes") or []
    found = {}
    for index in np.flatnonzero(np.bincount(process[worked])):
        number = numbers[int(index)]
        role = str(known[number].get("role")) if number < len(known) else "process"
        name = role if role not in found else f"{role} {number}"
        found[name] = Union(*work(recording, process == index)).within(low, high)
    return found
