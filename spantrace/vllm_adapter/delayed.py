"""A live server as the subject of an experiment: it is recorded all the while, and held up by that recording."""

from __future__ import annotations

from spantrace.capture import Capture
from spantrace.frames import Frame


class DelayedServer:
    """The server that `capture` records, for as long as there is load on it."""

    def __init__(self, capture: Capture, idle_s: float = 10.0) -> None:
        self._capture, self._idle_s = capture, idle_s

    def run(self, cycles: int) -> None:
        """Wait until so many more decode cycles were recorded; SpantraceError where none come."""
        self._capture.run_more(cycles, self._idle_s, "delayed")

    def delay(self, request: Frame) -> list[Frame]:
        """Ask every process."""
        return self._capture.delay(request)
