"""One recording in one process of a vLLM server: installs the hooks, streams what they record, removes them."""

from __future__ import annotations

import sys
import threading
import time

from spantrace.control import Connection
from spantrace.delays import Delays
from spantrace.errors import SpantraceError
from spantrace.explaining.answering import REQUESTS
from spantrace.frames import Frame
from spantrace.recorder import Recorder, cost_of_a_span
from spantrace.vllm_adapter import choice, marked_graphs
from spantrace.vllm_adapter.delaying import make_delays
from spantrace.vllm_adapter.description import describe_server, gpu_of_this_process
from spantrace.vllm_adapter.event_pool import BREATH_S, make_gpu_clock
from spantrace.vllm_adapter.explaining import make_explainer
from spantrace.vllm_adapter.holder import held_by
from spantrace.vllm_adapter.hooks import hooks_for
from spantrace.vllm_adapter.installation import Installation
from spantrace.vllm_adapter.probes import Probes, known_runner

DRAIN_S = 0.5
HEALTH_S = 1.0
PAUSE_S = 60.0
LAST_EVENTS_S = 5.0
ROOM_BITS = 100


class Session:
    """The rings, probes and hooks of one recording in this process.

    Where spans are to be held up each cycle is in detail: a hook that is not in force holds nothing up.
    """

    def __init__(self, options: Frame) -> None:
        self.gpu, self._event_ns = make_gpu_clock() if options.get("gpu", True) else (None, None)
        self.delays = make_delays(self.gpu is not None) if options.get("delays") else None
        self.explainer = make_explainer() if options.get("explain") else None
        inside = self.explainer.stacks if self.explainer else self.delays
        self.recorder = Recorder(gpu=self.gpu, nvtx=bool(options.get("nvtx")), delays=inside)
        self._tally = choice.Tally()
        self.probes = Probes(
            self.recorder,
            lambda runner: self._installation.hook_runner(runner),
            lambda on: self._installation.detail(on),
            1 if self.delays else max(1, int(options.get("detail_every", 1))),
        )
        self._installation = Installation(self.recorder, self.probes)

    def start(self) -> Frame:
        """Install every hook and say which; takes effect at the next call of each function."""
        calibration = {"host_span_ns": cost_of_a_span(), "gpu_event_ns": self._event_ns}
        on_gpu = gpu_of_this_process() is not None
        self._installation.plan(hook for hook in hooks_for(vllm_version()) if not (on_gpu and hook.without_gpu))
        if (runner := known_runner()) is not None:
            self._installation.hook_runner(runner)
        self._installation.install()
        refused = choice.refusals()
        return {**self.sites(), "missing": self._installation.missing, "calibration": calibration, "refused": refused}

    def state(self) -> Frame:
        """Its sites and health, its rank, and what the optimizations in this process counted since it began."""
        told = {"health": self.recorder.health(), "rank": self.probes.rank}
        return {**self.sites(), **told, "optimizations": self._tally.counts()}

    def description(self) -> list[Frame]:
        """What this process knows of its server, once a hook has seen what holds it."""
        config = self.probes.config()
        if config is None:
            return []
        graphs = marked_graphs.told(known_runner())
        return [{"type": "described", **describe_server(config, known_runner()), "graph_spans": graphs}]

    def sites(self) -> Frame:
        """By row number: each site's span and what it is inside draft.propose; and what graph a site launches."""
        return {"sites": self._installation.sites, "graphs": self._installation.graphs}

    def stop_after_fork(self) -> None:
        """Remove every hook in a child, where the thread that may have held the lock does not exist."""
        self._installation.abandon_lock()
        if self.explainer:
            self.explainer.stop_after_fork()
            self.explainer = None
        self.stop()

    def hooked(self) -> int:
        """Count the sites so far: those of the runner's models come once it has been seen."""
        return len(self._installation.sites)

    def pause(self) -> None:
        """Take the hooks out of force until `resume`."""
        self._installation.suspend()

    def resume(self) -> None:
        """Put the hooks into force again."""
        self._installation.install()

    def stop(self) -> None:
        """Remove every hook and profiler; a second call does nothing."""
        if self.explainer:
            self.explainer.stop()
        self._installation.remove()
        if self.gpu:
            self.gpu.end()


def vllm_version() -> str:
    """The running vLLM's version without its local part, "0" where it says none."""
    version = str(getattr(sys.modules.get("vllm"), "__version__", "0"))
    return version.partition("+")[0]


_busy = threading.Lock()
_sessions: list[Session] = []
_recorder: Connection | None = None
"""Whose recording it is."""


def forget() -> None:
    """After a fork: the child has nobody who would end the recording that it inherited."""
    global _busy, _recorder
    _busy, _recorder = threading.Lock(), None
    while _sessions:
        _sessions.pop().stop_after_fork()


def record(request: Frame, connection: Connection) -> None:
    """Serve one recording: install, stream until the client stops or goes away, remove."""
    global _recorder
    if not _busy.acquire(blocking=False):
        connection.send(held_by(_recorder))
        return
    _recorder = connection
    try:
        _record(request, connection)
    finally:
        _recorder = None
        _busy.release()


def _record(request: Frame, connection: Connection) -> None:
    session = Session(request)
    _sessions.append(session)
    try:
        connection.send({"type": "armed", **session.start()})
        _stream(session, connection)
        session.stop()
        _read_last_events(session)
        connection.send(*session.description(), *session.recorder.drain(), {"type": "stopped", **session.state()})
    finally:
        session.stop()
        _sessions.clear()


def _stream(session: Session, connection: Connection) -> None:
    """Send frames until a stop request; the peer's silence, garbage or death ends it by an exception.

    Each time this thread wakes up the engine's has to wait for the interpreter, so it does so as seldom as it can.
    """
    described, told, hooked = False, time.monotonic(), 0
    while (frame := connection.receive(DRAIN_S)) is None or frame.get("type") != "stop":
        if frame is not None:
            _pause(session, connection, frame)
            if frame.get("type") == "delay":
                connection.send(_delays(session).answer(frame))
            if session.explainer and frame.get("type") in REQUESTS:
                answer = session.explainer.answer(frame)
                connection.send(*session.recorder.drain(), answer)
            continue
        _make_room(session)
        description = [] if described else session.description()
        described = described or bool(description)
        frames = [*description, *session.recorder.drain()]
        if time.monotonic() - told >= HEALTH_S or hooked != session.hooked():
            told, hooked = time.monotonic(), session.hooked()
            frames.append({"type": "health", **session.state()})
        connection.send(*frames)


def _pause(session: Session, connection: Connection, frame: Frame) -> None:
    """On "pause" take the hooks out of force until "resume" comes; each is answered once it is done."""
    if frame.get("type") != "pause":
        return
    session.pause()
    connection.send({"type": "paused"})
    while (connection.receive(PAUSE_S) or {}).get("type") != "resume":
        pass
    session.resume()
    connection.send({"type": "resumed"})


def _delays(session: Session) -> Delays:
    if session.delays is None:
        raise SpantraceError("this recording was started without delays")
    return session.delays


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
