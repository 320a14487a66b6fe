"""A live server as the subject of an experiment: it is recorded all the while, and held up by that recording."""

from __future__ import annotations

from spantrace.capture import Capture, Until
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.frames import Frame


class DelayedServer:
    """The server that `capture` records, for as long as there is load on it."""

    def __init__(self, capture: Capture, idle_s: float = 10.0) -> None:
        self._capture, self._idle_s = capture, idle_s

    def run(self, cycles: int) -> None:
        """Wait until so many more decode cycles were recorded; SpantraceError where none come."""
        wanted = self._capture.cycles + cycles
        self._capture.run(Until(cycles=wanted, idle=self._idle_s))
        if self._capture.cycles < wanted:
            why = self._capture.note or "the recording ended"
            raise SpantraceError(f"{why}; keep load on the server for as long as it is delayed", EXIT_NOT_COMPARABLE)

    def delay(self, request: Frame) -> list[Frame]:
        """Ask every process."""
        return self._capture.delay(request)
