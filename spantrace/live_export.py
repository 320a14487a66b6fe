"""Exports a recording while it runs, in threads of the recorder's process: what fails there does not touch it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from spantrace.frames import Frame
from spantrace.recording import Header, Recording
from spantrace.settling import Settled, Settling

INTERVAL_S = 1.0


class Sink(Protocol):
    """Where cycles and spans go as they settle."""

    def take(self, settled: Settled) -> None:
        """Take what has settled, without waiting for anybody."""

    def close(self) -> None:
        """Pass on what was taken, as far as that goes quickly, and end."""

    def told(self, recording: Recording) -> str:
        """How much of this recording was passed on, as a sentence."""


class LiveExport:
    """Gives `sinks` what settles of the frames that are taken, once a second, until it is closed."""

    def __init__(self, header: Header, sinks: Sequence[Sink], interval: float = INTERVAL_S) -> None:
        self._settling, self._sinks, self._interval = Settling(header), sinks, interval
        self._ended = threading.Event()
        self._failure = ""
        self._complete = False
        self._thread = threading.Thread(target=self._work, name="spantrace-export", daemon=True)
        self._thread.start()

    @property
    def take(self) -> Callable[[Frame], None]:
        """What takes a frame of the recording, from any thread."""
        return self._settling.take

    def close(self, *, complete: bool = False) -> None:
        """End; `complete` says that all frames have come, so that what has not settled yet is passed on too."""
        self._complete = self._complete or complete
        self._ended.set()
        self._thread.join()

    def told(self, recording: Recording) -> list[str]:
        """What became of each sink's share of this recording, once it is closed."""
        failed = [f"the live export ended early: {self._failure}; please report it"] if self._failure else []
        return [*failed, *(sink.told(recording) for sink in self._sinks)]

    def __enter__(self) -> LiveExport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while not self._ended.wait(self._interval):
            self._pass_on(all_of_it=False)
        if self._complete:
            self._pass_on(all_of_it=True)
        for sink in self._sinks:
            sink.close()

    def _pass_on(self, *, all_of_it: bool) -> None:
        """Hand on what has settled; after a failure nothing is kept any more."""
        if self._failure:
            self._settling.forget()
            return
        try:
            for settled in self._settling.settle(time.perf_counter_ns(), all_of_it=all_of_it):
                for sink in self._sinks:
                    sink.take(settled)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
