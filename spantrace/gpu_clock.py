"""GPU timestamps of span edges from a pool of timing events; recording one never blocks and reading never waits.

A mark is an event on the stream that the worker launches to. A span that directly follows another on the stream
opens with that one's closing mark. Marks are numbered without end and kept in a fixed pool; what the pool or the
budget of a cycle has no room for is counted, never waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from spantrace.wrapping import Flag

BUDGET = 10
"""Event records in a timed cycle; none comes before the first cycle, so none into a graph under capture at start."""
ANCHOR_MS = 1000.0
"""elapsed_time() is a float32 of milliseconds: past about a second its grain exceeds the event's own."""


class TimingEvent(Protocol):
    """What torch.cuda.Event(enable_timing=True) does."""

    def record(self, stream: Any) -> None:
        """Put the event on a stream."""

    def query(self) -> bool:
        """Say whether the GPU has passed it."""

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds from this event to a later one."""


class PartsOfGraphs(Protocol):
    """What times the parts of the graphs that are replayed in a clock's spans; `reads` counts the events read."""

    reads: int

    def new_cycle(self, timed: bool) -> None:
        """A cycle begins, and its GPU spans are timed or not."""

    def drain(self) -> list[int]:
        """Take out the values of the rows so far."""


class GpuClock:
    """Marks on one stream, which `stream()` looks up once.

    `pool` holds two events or more. `record(event, stream)` records an event; by default that is the event's own
    method. `timing` is raised in the cycles that are timed, which `cycles` counts. `graphs`, where it is set, times the
    parts of the graphs that are replayed in its spans.
    """

    def __init__(
        self,
        pool: list[Any],
        stream: Callable[[], Any],
        record: Callable[[Any, Any], object] | None = None,
    ) -> None:
        self._find_stream = stream
        self._record = record or type(pool[0]).record
        self._pool: list[TimingEvent]
        *self._pool, self._spare = pool
        self._size = len(self._pool)
        self._gpu = [0.0] * self._size
        self._stream: Any = None
        self._anchor: TimingEvent | None = None
        self._anchor_ms = 0.0
        self._marks = self._read = self._limit = self._cycle_began = 0
        self._spans: deque[tuple[int, int, int, int, int]] = deque()
        self._dead = False
        self.timing = Flag()
        self.graphs: PartsOfGraphs | None = None
        self.cycles = 0
        self.skipped = 0
        self.errors = 0
        self.first_error = ""

    def new_cycle(self, timed: bool = True) -> None:
        """Begin a cycle and, where it is one to be timed, grant it its budget; called on the worker's thread."""
        self.timing.clear()
        if self._dead:
            return
        if self.graphs is not None:
            self.graphs.new_cycle(timed)
        if not timed:
            return
        self.cycles += 1
        if self._stream is None:
            self._stream = self._find_stream()
        self._cycle_began = self._marks
        self._limit = min(self._marks + BUDGET, self._read + self._size)
        self.timing.append(True)

    def end(self) -> None:
        """Record no more events, also from a wrapper that is still blocked in its call."""
        self._dead = True
        self._limit = 0
        self.timing.clear()

    def open(self) -> int:
        """The mark at which a span begins; -1 where there is no room for one."""
        mark = self._marks
        if mark >= self._limit:
            self.skipped += 1
            return -1
        try:
            self._record(self._pool[mark % self._size], self._stream)
        except Exception as error:
            self.end()
            self.failed(error)
            return -1
        self._marks = mark + 1
        return mark

    def follow(self) -> int:
        """The mark at which a span begins that directly follows the last one of its cycle on the stream."""
        last = self._marks - 1
        return last if last >= self._cycle_began else self.open()

    def close(self, row: int, start_ns: int, end_ns: int, opened: int) -> None:
        """End a span that `opened` at a mark; the host times are those of the span's host row."""
        if opened >= 0 and (mark := self.open()) >= 0:
            self._spans.append((row, start_ns, end_ns, opened, mark))

    def opened(self) -> TimingEvent | None:
        """The event of the last mark of this cycle; None where it is not timed or has none."""
        last = self._marks - 1
        return self._pool[last % self._size] if self.timing and last >= self._cycle_began else None

    def crowded(self) -> bool:
        """Say whether the pool is three quarters full of marks that nobody has read."""
        return self.unread() > self._size * 3 // 4

    def records(self) -> int:
        """Count the events recorded so far, and those read in graphs, which take no longer."""
        return self._marks + (self.graphs.reads if self.graphs else 0)

    def unread(self) -> int:
        """Count the marks whose times nobody has read yet."""
        return self._marks - self._read

    def resolve(self, most: int = 32) -> int:
        """Read up to `most` marks that the GPU has passed; returns how many, 0 when none is ready."""
        upto = min(self._read + most, self._marks)
        if upto == self._read or not self._pool[(upto - 1) % self._size].query():
            return 0
        for number in range(self._read, upto):
            self._time(number % self._size)
        done, self._read = upto - self._read, upto
        return done

    def spans(self) -> list[tuple[int, int, int, int, int]]:
        """Take out the spans whose marks are read: row, host start and end, GPU start and end.

        All in ns; the GPU's on a clock of its own.
        """
        ready = []
        while self._spans and self._spans[0][4] < self._read:
            row, start_ns, end_ns, first, last = self._spans.popleft()
            if self._marks - first <= self._size:
                begin, end = self._gpu[first % self._size], self._gpu[last % self._size]
                ready.append((row, start_ns, end_ns, round(begin * 1e6), round(end * 1e6)))
        return ready

    def _time(self, slot: int) -> None:
        event = self._pool[slot]
        elapsed = 0.0 if self._anchor is None else self._anchor.elapsed_time(event)
        self._gpu[slot] = self._anchor_ms + elapsed
        if self._anchor is None or elapsed > ANCHOR_MS:
            freed = self._spare if self._anchor is None else self._anchor
            self._anchor, self._anchor_ms, self._pool[slot] = event, self._gpu[slot], freed

    def failed(self, error: Exception) -> None:
        """Count an error and remember the first."""
        self.errors += 1
        self.first_error = self.first_error or repr(error)
