"""One recording in one process of a vLLM server: installs the hooks, streams what they record, removes them."""

from __future__ import annotations

import sys
import threading
import time
from statistics import median
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
"""Pause between two bits of work off the server's threads, so that they get the interpreter in between."""
POOL = 12288
"""Events for a thousand cycles, which are then read after the recording only."""
CREATED_AT_ONCE = 16
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
        return {**self.sites(), "missing": self._installation.missing, "calibration": calibration}

    def sites(self) -> Frame:
        """By row number: each site's span and what it is inside draft.propose; and what graph a site launches."""
        return {"sites": self._installation.sites, "graphs": self._installation.graphs}

    def stop_after_fork(self) -> None:
        """Remove every hook in a child, where the thread that may have held the lock does not exist."""
        self._installation.abandon_lock()
        self.stop()

    def stop(self) -> None:
        """Remove every hook; a second call does nothing."""
        self._installation.remove()
        if self.gpu:
            self.gpu.end()


def vllm_version() -> str:
    """The running vLLM's version without its local part, "0" where it says none."""
    version = str(getattr(sys.modules.get("vllm"), "__version__", "0"))
    return version.partition("+")[0]


_pool: list[Any] = []
"""The process's timing events, kept for the next recording."""


def make_gpu_clock() -> tuple[GpuClock | None, float | None]:
    """A clock on this process's GPU and what recording one event costs in ns; (None, None) without a GPU."""
    gpu = gpu_of_this_process()
    if gpu is None:
        return None, None
    import torch

    with torch.cuda.device(gpu):
        side = torch.cuda.Stream()
        while len(_pool) < POOL:
            _pool.extend(_used_once(side) for _ in range(CREATED_AT_ONCE))
            time.sleep(BREATH_S)
        costs = [_time_record(event, side) for event in _pool[:200]]
    return GpuClock(_pool, torch.cuda.current_stream), float(median(costs))


def _used_once(stream: Any) -> Any:
    """A timing event that has been recorded: torch creates the CUDA event at its first record."""
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def _time_record(event: Any, stream: Any) -> int:
    begin = time.perf_counter_ns()
    event.record(stream)
    return time.perf_counter_ns() - begin


_busy = threading.Lock()
_sessions: list[Session] = []


def forget() -> None:
    """After a fork: the child has nobody who would end the recording that it inherited."""
    global _busy
    _busy = threading.Lock()
    while _sessions:
        _sessions.pop().stop_after_fork()


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
    _sessions.append(session)
    try:
        connection.send({"type": "armed", **session.start()})
        _stream(session, connection)
        session.stop()
        _read_last_events(session)
        for frame in session.recorder.drain():
            connection.send(frame)
        connection.send({"type": "stopped", **session.sites(), "health": session.recorder.health()})
    finally:
        session.stop()
        _sessions.clear()


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
            connection.send({"type": "health", **session.sites(), "health": session.recorder.health()})


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
