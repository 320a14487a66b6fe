"""GPU timestamps of span edges from a pool of timing events; recording one never blocks and reading never waits.

A mark is an event on the stream that the worker launches to. A mark asked for within `SHARE_NS` of the last one
is that one, so that adjacent spans share an event. Marks are numbered without end and kept in a fixed pool;
what the pool or the budget of a cycle has no room for is counted, never waited for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

SHARE_NS = 10_000
BUDGET = 10
"""Event records a cycle: each costs the host about 3 us on an H200 when the stream is already looked up."""
ANCHOR_MS = 1000.0
"""elapsed_time() is a float32 of milliseconds: past about a second its grain exceeds the event's own."""


class GpuClock:
    """Marks on one stream; `new_event()` makes a timing event and `stream()` looks the stream up, once."""

    def __init__(
        self,
        new_event: Callable[[], Any],
        stream: Callable[[], Any],
        size: int = 12288,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._new_event, self._find_stream, self._clock = new_event, stream, clock
        self._pool = [new_event() for _ in range(size)]
        self._host = [0] * size
        self._gpu = [0.0] * size
        self._stream: Any = None
        self._anchor: Any = None
        self._anchor_ms = 0.0
        self._marks = self._read = 0
        self._left = BUDGET
        self._cycle_began = 0
        self._last_ns = 0
        self._spans: deque[tuple[int, int, int, int]] = deque()
        self.skipped = 0
        self.errors = 0
        self.first_error = ""

    def new_cycle(self) -> None:
        """Grant the next cycle its budget of event records."""
        self._left = BUDGET
        self._cycle_began = self._marks

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
        if now - self._last_ns < SHARE_NS and last != unlike and last >= 0:
            return last
        if self._left <= 0 or self._marks - self._read >= len(self._pool):
            self.skipped += 1
            return -1
        try:
            if self._stream is None:
                self._stream = self._find_stream()
            slot = self._marks % len(self._pool)
            self._pool[slot].record(self._stream)
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

    def unread(self) -> int:
        """Count the marks whose times nobody has read yet."""
        return self._marks - self._read

    def resolve(self, most: int = 32) -> int:
        """Read up to `most` marks that the GPU has passed; returns how many, 0 when none is ready."""
        upto = min(self._read + most, self._marks)
        if upto == self._read or not self._pool[(upto - 1) % len(self._pool)].query():
            return 0
        for number in range(self._read, upto):
            self._time(number % len(self._pool))
        done, self._read = upto - self._read, upto
        return done

    def _time(self, slot: int) -> None:
        event = self._pool[slot]
        elapsed = 0.0 if self._anchor is None else self._anchor.elapsed_time(event)
        self._gpu[slot] = self._anchor_ms + elapsed
        if self._anchor is None or elapsed > ANCHOR_MS:
            self._anchor, self._anchor_ms = event, self._gpu[slot]
            self._pool[slot] = self._new_event()

    def spans(self) -> list[tuple[int, int, int, int, int]]:
        """Take out the spans whose marks are read: row, host start, host time of the first mark, GPU start and end (ns)."""
        ready = []
        while self._spans and self._spans[0][3] < self._read:
            row, start_ns, first, last = self._spans.popleft()
            if self._marks - first <= len(self._pool):
                begin, end = first % len(self._pool), last % len(self._pool)
                ready.append(
                    (row, start_ns, self._host[begin], round(self._gpu[begin] * 1e6), round(self._gpu[end] * 1e6))
                )
        return ready
