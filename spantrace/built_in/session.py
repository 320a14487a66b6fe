"""One recording of the built-in cycle in its own process: a server's recorder, and the frames that a server sends."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

import torch

import optimized
from optimized.reference_cycle.cycle import Cycle
from optimized.reference_cycle.facts import Facts
from optimized.reference_cycle.instrument import instrument, span_sites
from spantrace.built_in.marked import Marked
from spantrace.frames import Frame
from spantrace.inside import Inside
from spantrace.journal import Journal
from spantrace.recorder import Recorder, cost_of_a_span
from spantrace.switched import KEY
from spantrace.vllm_adapter.description import gpu_description
from spantrace.vllm_adapter.event_pool import make_gpu_clock
from spantrace.vllm_adapter.gpu_state import gpu_states

DRAIN_S = 1.0
"""How often rows go to the journal, between two cycles."""


class Session:
    """One recording: its frames go to the journal from the moment it is entered until `finish`.

    With `delays` each of its spans can be held up, or looked into.
    """

    def __init__(
        self,
        cycle: Cycle,
        server: Frame,
        journal: Journal,
        delays: Inside | None = None,
        *,
        graph_spans: bool = False,
    ) -> None:
        self._server, self._journal, self._delays = server, journal, delays
        self._gpu = gpu_description() if cycle.settings.device == "cuda" else None
        self._clock, self._event_ns = make_gpu_clock() if self._gpu else (None, None)
        drafts = cycle.drafter is not None
        self._graphs = Marked(self._clock, drafts=drafts) if graph_spans and self._clock else None
        self._recorder = Recorder(gpu=self._clock, delays=delays)
        sites = span_sites(cycle)
        self._sites = [(site.span, None) for site in sites]
        self._patches = instrument(sites, self._recorder, Facts(self._recorder))
        self._drained = time.monotonic()
        self._counts: list[dict[str, Any]] = []

    def __enter__(self) -> Session:
        about = {"pid": os.getpid(), "role": "engine", "missing": [], "sites": self._sites}
        calibration = {"host_span_ns": cost_of_a_span(), "gpu_event_ns": self._event_ns}
        self._write({"type": "armed", "about": about, "calibration": calibration})
        self._describe()
        if self._graphs:
            self._graphs.begin()
        self._patches.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.revert()
        if self._graphs:
            self._graphs.end()
        if self._delays:
            self._delays.end()
        if self._clock:
            self._clock.end()
        self._counts = optimized.counts()

    def between_cycles(self) -> None:
        """Once in a while hand the rows to the journal."""
        if self._delays:
            self._delays.new_cycle()
        if time.monotonic() - self._drained >= DRAIN_S:
            self._drained = time.monotonic()
            self.drain()
            self._write({"type": "health", **self._state(optimized.counts())})

    def finish(self, notes: list[str]) -> None:
        """Journal the rest: rows, events that the GPU was not asked for yet, health, and what to doubt.

        The GPU's clocks are read here, where it has just been at work; before, it idled.
        """
        if self._clock:
            self._describe(gpus=gpu_states())
            torch.cuda.synchronize()
        self.drain()
        for note in notes:
            self._write({"type": "note", "text": note})
        self._write({"type": "stopped", **self._state(self._counts)})
        self._journal.write({"type": "end"})

    def _describe(self, **more: Any) -> None:
        graphs = self._graphs.told() if self._graphs else None
        self._write({"type": "described", "server": self._server, "gpu": self._gpu, "graph_spans": graphs, **more})

    def drain(self) -> None:
        """Journal what was recorded so far, and the events that the GPU has passed."""
        while self._clock and self._clock.resolve():
            pass
        for frame in self._recorder.drain():
            self._write(frame)

    def _state(self, counts: list[dict[str, Any]]) -> Frame:
        return {"sites": self._sites, "health": self._recorder.health(), KEY: counts}

    def _write(self, frame: Frame) -> None:
        self._journal.write({**frame, "process": 0})
