"""GPU timestamps of span edges from a pool of timing events; recording one never blocks and reading never waits.

A mark is an event on the stream that the worker launches to. A mark asked for within `SHARE_NS` of the last one
is that one, so that adjacent spans share an event. Marks are numbered without end and kept in a fixed pool;
what the pool or the budget of a cycle has no room for is counted, never waited for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

SHARE_NS = 10_000
BUDGET = 10
"""Event records a cycle; nothing is recorded before the first cycle, so never into a graph under capture at start."""
ANCHOR_MS = 1000.0
"""elapsed_ms() is a float32 of milliseconds: past about a second its grain exceeds the event's own."""


class Events(Protocol):
    """What times a stream: `spantrace.cuda_events.CudaEvents`, or a test's device."""

    def record(self, event: Any, stream: Any) -> None:
        """Put an event on the stream."""

    def passed(self, event: Any) -> bool:
        """Say whether the GPU has passed it."""

    def elapsed_ms(self, first: Any, second: Any) -> float:
        """Milliseconds between two passed events."""


class GpuClock:
    """Marks on one stream, which `stream()` looks up once; `pool` holds two or more events of `events`."""

    def __init__(
        self,
        events: Events,
        pool: list[Any],
        stream: Callable[[], Any],
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._events, self._find_stream, self._clock = events, stream, clock
        *self._pool, self._spare = pool
        self._host = [0] * len(self._pool)
        self._gpu = [0.0] * len(self._pool)
        self._stream: Any = None
        self._anchor: Any = None
        self._anchor_ms = 0.0
        self._marks = self._read = 0
        self._left = 0
        self._cycle_began = 0
        self._last_ns = 0
        self._spans: deque[tuple[int, int, int, int]] = deque()
        self.cycles = 0
        self.skipped = 0
        self.errors = 0
        self.first_error = ""

    def new_cycle(self) -> None:
        """Grant the next cycle its budget of event records."""
        self._left = BUDGET
        self._cycle_began = self._marks
        self.cycles += 1

    def close(self) -> None:
        """Record no more events, also from a wrapper that is still blocked in its call."""
        self._left = 0

    def open(self) -> int:
        """The mark at which a span begins: one of its own, or the last one where that is recent."""
        return self.mark(-1)

    def follow(self) -> int:
        """The mark at which a span begins that directly follows the last one of its cycle on the stream."""
        return self._marks - 1 if self._marks > self._cycle_began else self.mark(-1)

    def mark(self, unlike: int) -> int:
        """Record an event now, or share the last one unless that is mark `unlike`; -1 where there is no room."""
        now = self._clock()
        last = self._marks - 1
        if now - self._last_ns < SHARE_NS and last != unlike and last >= self._cycle_began:
            return last
        if self._left <= 0 or self._marks - self._read >= len(self._pool):
            self.skipped += 1
            return -1
        try:
            if self._stream is None:
                self._stream = self._find_stream()
            slot = self._marks % len(self._pool)
            self._events.record(self._pool[slot], self._stream)
        except Exception as error:
            self._left = 0
            self.errors += 1
            self.first_error = self.first_error or repr(error)
            return -1
        self._host[slot] = now
        self._marks += 1
        self._left -= 1
        self._last_ns = self._clock()
        return last + 1

    def marked(self, row: int, start_ns: int, first: int, last: int) -> None:
        """Keep a span between two marks; `start_ns` is its host start, by which it is joined to its cycle."""
        if first >= 0 and last >= 0:
            self._spans.append((row, start_ns, first, last))

    def crowded(self) -> bool:
        """Say whether the pool is three quarters full of marks that nobody has read."""
        return self._marks - self._read > len(self._pool) * 3 // 4

    def records(self) -> int:
        """Count the events recorded so far."""
        return self._marks

    def unread(self) -> int:
        """Count the marks whose times nobody has read yet."""
        return self._marks - self._read

    def resolve(self, most: int = 32) -> int:
        """Read up to `most` marks that the GPU has passed; returns how many, 0 when none is ready."""
        upto = min(self._read + most, self._marks)
        if upto == self._read or not self._events.passed(self._pool[(upto - 1) % len(self._pool)]):
            return 0
        for number in range(self._read, upto):
            self._time(number % len(self._pool))
        done, self._read = upto - self._read, upto
        return done

    def _time(self, slot: int) -> None:
        event = self._pool[slot]
        elapsed = 0.0 if self._anchor is None else self._events.elapsed_ms(self._anchor, event)
        self._gpu[slot] = self._anchor_ms + elapsed
        if self._anchor is None or elapsed > ANCHOR_MS:
            freed = self._spare if self._anchor is None else self._anchor
            self._anchor, self._anchor_ms, self._pool[slot] = event, self._gpu[slot], freed

    def spans(self) -> list[tuple[int, int, int, int, int]]:
        """Take out the spans whose marks are read: row, host start, host time of its first mark, GPU start, GPU end.

        All in ns; the GPU's on a clock of its own.
        """
        ready = []
        while self._spans and self._spans[0][3] < self._read:
            row, start_ns, first, last = self._spans.popleft()
            if self._marks - first <= len(self._pool):
                begin, end = first % len(self._pool), last % len(self._pool)
                ready.append(
                    (row, start_ns, self._host[begin], round(self._gpu[begin] * 1e6), round(self._gpu[end] * 1e6))
                )
        return ready
