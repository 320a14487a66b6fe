"""The built-in cycle as a campaign's target: one cycle in this process, whose arms take turns on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import TracebackType

import optimized
from optimized.reference_cycle.instrument import span_sites
from spantrace.built_in.delayed import DelayedCycle
from spantrace.built_in.running import Asked, BuiltIn, switched_on, within_memory
from spantrace.built_in.session import Session
from spantrace.campaign.code import own_code
from spantrace.campaign.contention import Neighbours
from spantrace.campaign.holding import Holding
from spantrace.campaign.plan import Arm, Plan
from spantrace.campaign.running import Measured
from spantrace.campaign.store import Window
from spantrace.delays import Delays
from spantrace.errors import SpantraceError
from spantrace.journal import Journal

PROBED = 8
"""Cycles that are run to estimate how long the campaign takes."""
FIXED_S = 0.15
"""What a window takes beside its cycles: calibration, joining, writing."""


class BuiltInTarget:
    """`asked` says which cycle; its optimizations are those of the arm whose turn it is."""

    def __init__(self, plan: Plan, asked: Asked) -> None:
        self._plan = plan
        self._asked = replace(asked, cycles=plan.cycles, warmup=plan.warmup)
        self._works: dict[tuple[str, ...], BuiltIn] = {}

    def __enter__(self) -> BuiltInTarget:
        """Build the cycle; SpantraceError where an arm cannot be applied to it, before anything is measured."""
        for arm in self._plan.arms:
            with switched_on(arm.on):
                pass
        with within_memory(self._asked.settings):
            self._stock = BuiltIn(replace(self._asked, optimize=()))
        run = {site.span for site in span_sites(self._stock.cycle)}
        for arm in self._plan.arms:
            if idle := arm.delay.keys() - run:
                raise SpantraceError(
                    f"arm {arm.name!r} of the plan delays {min(idle)!r}, which this cycle does not have"
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._works.clear()

    def seconds(self, windows: Sequence[Window]) -> float:
        """About how long these windows will take, by a few cycles that are run for it."""
        prefill, cycle = self._probe()
        lengths = self._stock.lengths
        sets = len({arm.on for arm in self._plan.arms})
        words = (
            1.0 + sum(self._asked.rates or (0.0,)) / max(len(self._asked.rates), 1) * self._asked.settings.speculative
        )
        waves = 1.0 + self._plan.length * words / lengths.output
        prepare = sets * (prefill + lengths.known * cycle) if self._asked.synthetic else 0.0
        return prepare + len(windows) * (FIXED_S + self._plan.length * cycle + waves * prefill)

    def code(self, arm: Arm) -> str:
        """The hash of the recorder's, the cycle's and the optimizations' sources."""
        return own_code(arm.on)

    def measure(self, arm: Arm, journal: Journal) -> Measured:
        """Record one window; the cycle says all that is known of its load."""
        work, neighbours = self._work(arm), Neighbours()
        with within_memory(self._asked.settings):
            neighbours.look()
            if arm.delay:
                self._delayed(work, arm, journal)
            else:
                work.record(journal, lambda cycles: None)
        if work.interrupted:
            raise KeyboardInterrupt
        return Measured(others=neighbours.share())

    def _delayed(self, work: BuiltIn, arm: Arm, journal: Journal) -> None:
        """Record a window in which the arm's span is held up in each cycle; SpantraceError where it was not."""
        delays = Delays()

        def drive(session: Session) -> None:
            holding, decoded = Holding(arm.delay, DelayedCycle(work, session, delays).delay), 0
            while decoded < self._plan.length:
                holding.renew()
                decoded += work.advance(session)
            holding.end(self._plan.length)

        work.record(journal, lambda cycles: None, drive, delays)

    def _work(self, arm: Arm) -> BuiltIn:
        """The arm's requests, and what the target will say with its optimizations on, found once."""
        if arm.on not in self._works:
            live = all(optimized.discover()[name].live_switchable for name in arm.on)
            work = BuiltIn(replace(self._asked, optimize=arm.on), self._stock.cycle if live else None)
            work.prepare(lambda tokens: None)
            self._works[arm.on] = work
        return self._works[arm.on]

    def _probe(self) -> tuple[float, float]:
        """Seconds of the first cycle of a wave, which prefills, beyond one of the others, and of one of those."""
        self._stock.cycle.scheduler.abort()
        times = [time.perf_counter()]
        for _ in range(PROBED):
            self._stock.load.step()
            times.append(time.perf_counter())
        self._stock.cycle.scheduler.abort()
        first, *rest = (after - before for before, after in pairwise(times))
        cycle = sorted(rest)[len(rest) // 2]
        return max(first - cycle, 0.0), cycle
