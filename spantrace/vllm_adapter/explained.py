"""A live server as what is explained: it is recorded all the while, and looked into by that recording."""

from __future__ import annotations

from spantrace.capture import Capture
from spantrace.explaining.answering import ANSWER
from spantrace.frames import Frame
from spantrace.journal import Journal
from spantrace.loading import load
from spantrace.recording import Recording

ANSWER_TIMEOUT_S = 60.0
"""A process that has never traced its GPU takes some seconds to begin."""
OPTIONS: Frame = {"explain": True, "detail_every": 1}
"""What a recording is asked for that looks into spans."""


class ExplainedServer:
    """The server that `capture` records into `journal`, for as long as there is load on it."""

    def __init__(self, capture: Capture, journal: Journal, idle_s: float = 10.0) -> None:
        self._capture, self._journal, self._idle_s = capture, journal, idle_s

    def run(self, cycles: int) -> None:
        """Wait until so many more decode cycles were recorded; SpantraceError where none come."""
        self._capture.run_more(cycles, self._idle_s, "explained")

    def ask(self, request: Frame) -> list[Frame]:
        """Ask every process."""
        return self._capture.ask(request, ANSWER, ANSWER_TIMEOUT_S)

    def recording(self) -> Recording:
        """What has arrived so far."""
        return load(self._journal.part)
