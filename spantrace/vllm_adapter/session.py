"""One recording in one process of a vLLM server: installs the hooks, streams what they record, removes them."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from spantrace.control import Connection
from spantrace.frames import Frame
from spantrace.gpu_clock import GpuClock
from spantrace.recorder import Recorder, cost_of_a_span
from spantrace.vllm_adapter.description import describe_server, gpu_of_this_process
from spantrace.vllm_adapter.hooks import hooks_for
from spantrace.vllm_adapter.installation import Installation
from spantrace.vllm_adapter.probes import Probes, known_runner

DRAIN_S = 0.25
POLL_S = 0.05
LAST_EVENTS_S = 5.0
BREATH_S = 0.0003
ROOM_BITS = 100


class Session:
    """The rings, probes and hooks of one recording in this process."""

    def __init__(self, options: Frame) -> None:
        self.gpu, self._event_ns = make_gpu_clock() if options.get("gpu", True) else (None, None)
        self.recorder = Recorder(gpu=self.gpu, nvtx=bool(options.get("nvtx")))
        self.probes = Probes(self.recorder, lambda runner: self._installation.hook_runner(runner))
        self._installation = Installation(self.recorder, self.probes)

    def start(self) -> Frame:
        """Install every hook and say which; takes effect at the next call of each function."""
        calibration = {"host_span_ns": cost_of_a_span(), "gpu_event_ns": self._event_ns}
        self._installation.plan(hooks_for(vllm_version()))
        if (runner := known_runner()) is not None:
            self._installation.hook_runner(runner)
        self._installation.install()
        return {"missing": self._installation.missing, "calibration": calibration}

    def sites(self) -> list[tuple[str, str | None]]:
        """The span of each site, and what it is inside draft.propose, in the order of the rows' numbers."""
        return self._installation.sites

    def stop(self) -> None:
        """Remove every hook; a second call does nothing."""
        self._installation.remove()


def vllm_version() -> str:
    """The running vLLM's version without its local part, "0" where it says none."""
    version = str(getattr(sys.modules.get("vllm"), "__version__", "0"))
    return version.partition("+")[0]


def make_gpu_clock() -> tuple[GpuClock | None, float | None]:
    """A clock on this process's GPU and the cost of recording one of its events in ns; (None, None) without a GPU."""
    gpu = gpu_of_this_process()
    if gpu is None:
        return None, None
    import torch

    with torch.cuda.device(gpu):
        side = torch.cuda.Stream()
        costs: list[int] = []

        def new_event() -> Any:
            event = torch.cuda.Event(enable_timing=True)
            begin = time.perf_counter_ns()
            event.record(side)
            costs.append(time.perf_counter_ns() - begin)
            if len(costs) % 32 == 0:
                time.sleep(BREATH_S)
            return event

        clock = GpuClock(new_event, torch.cuda.current_stream)
    return clock, float(sorted(costs)[len(costs) // 2])


_busy = threading.Lock()


def record(request: Frame, connection: Connection) -> None:
    """Serve one recording: install, stream until the client stops or goes away, remove."""
    if not _busy.acquire(blocking=False):
        why = "this server is already being recorded; wait until that recording ends"
        connection.send({"type": "refused", "why": why})
        return
    try:
        _record(request, connection)
    finally:
        _busy.release()


def _record(request: Frame, connection: Connection) -> None:
    session = Session(request)
    try:
        connection.send({"type": "armed", **session.start()})
        _stream(session, connection)
        session.stop()
        _read_last_events(session)
        for frame in session.recorder.drain():
            connection.send(frame)
        connection.send({"type": "stopped", "sites": session.sites(), "health": session.recorder.health()})
    finally:
        session.stop()


def _stream(session: Session, connection: Connection) -> None:
    """Send frames until a stop request; the peer's silence, garbage or death ends it by an exception."""
    described = False
    drained = time.monotonic()
    while (frame := connection.receive(POLL_S)) is None or frame.get("type") != "stop":
        _make_room(session)
        if not described and (config := session.probes.config()) is not None:
            described = True
            connection.send({"type": "described", **describe_server(config, known_runner())})
        if time.monotonic() - drained >= DRAIN_S:
            drained = time.monotonic()
            for part in session.recorder.drain():
                connection.send(part)
            connection.send({"type": "health", "sites": session.sites(), "health": session.recorder.health()})


def _make_room(session: Session) -> None:
    """Read marks while the pool is crowded, in bits so short that the server's threads get the interpreter between."""
    for _ in range(ROOM_BITS):
        if not (session.gpu and session.gpu.crowded() and session.gpu.resolve()):
            return
        time.sleep(BREATH_S)


def _read_last_events(session: Session) -> None:
    """Read the events that the GPU has passed by now, waiting off the server's threads for the last ones."""
    deadline = time.monotonic() + LAST_EVENTS_S
    while session.gpu and session.gpu.unread() and time.monotonic() < deadline:
        session.gpu.resolve()
        time.sleep(BREATH_S)
