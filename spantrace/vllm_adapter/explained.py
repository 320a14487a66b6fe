"""A live server as what is explained: it is recorded all the while, and looked into by that recording."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from spantrace.capture import Capture
from spantrace.explaining.answering import ANSWER
from spantrace.frames import Frame
from spantrace.journal import Journal
from spantrace.loading import load
from spantrace.ranks import of_chosen
from spantrace.recording import Recording

ANSWER_TIMEOUT_S = 60.0
"""A process that has never traced its GPU takes some seconds to begin."""
OPTIONS: Frame = {"explain": True, "detail_every": 1}
"""What a recording is asked for that looks into spans."""


class ExplainedServer:
    """The server that `capture` records into `journal`, for as long as there is load on it."""

    def __init__(self, capture: Capture, journal: Journal, idle_s: float = 10.0) -> None:
        self._capture, self._journal, self._idle_s = capture, journal, idle_s
        self._rank: int | None = None

    def run(self, cycles: int) -> None:
        """Wait until so many more decode cycles were recorded; SpantraceError where none come."""
        self._capture.run_more(cycles, self._idle_s, "explained")

    def ask(self, request: Frame) -> list[Frame]:
        """Ask every process."""
        return self._capture.ask(request, ANSWER, ANSWER_TIMEOUT_S)

    def recording(self) -> Recording:
        """What has arrived so far, while more does: a process that is not read for long leaves."""
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(load, self._journal.part)
            while not loading.done() and self._capture.listen(0.05):
                pass
            return self.of_one_rank(loading.result())

    def of_one_rank(self, recording: Recording) -> Recording:
        """The part of it that is looked into: the engine's, and of several ranks that of the one slowest at first."""
        chosen = of_chosen(recording, self._rank)
        self._rank = chosen.header.get("rank")
        return chosen
