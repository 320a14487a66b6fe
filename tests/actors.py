"""Processes of a server played by threads on real control sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from journals import Played

from spantrace.control import Connection
from spantrace.frames import Frame

Answer = Callable[[Connection, "Actor"], None]


class Actor:
    """Plays one process: answers `record` with its frames, all but the last at once, and the last on `stop`."""

    def __init__(self, directory: Path, played: Played, log: list[str], answer: Answer | None = None) -> None:
        self.played, self.log, self.name = played, log, played.about["role"]
        self.requests: list[Frame] = []
        self._answer = answer or play
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{directory}/{played.about['pid']}.sock")
        self._listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.closing(self._listener):
            connection = Connection(self._listener.accept()[0])
        with contextlib.closing(connection), contextlib.suppress(OSError, EOFError):
            request = connection.receive(10)
            assert request is not None
            self.requests.append(request)
            self.log.append(f"{self.name} {request['type']}")
            self._answer(connection, self)
            while True:
                connection.receive(10)


def play(connection: Connection, actor: Actor) -> None:
    """Send what a healthy process sends."""
    *frames, stopped = actor.played.frames()
    for frame in frames:
        connection.send(frame)
    assert connection.receive(10) == {"type": "stop"}
    actor.log.append(f"{actor.name} stop")
    connection.send(stopped)


Cast = Callable[..., list[str]]


@contextlib.contextmanager
def casting(directory: Path) -> Iterator[Cast]:
    """Sets processes up in `directory`, and returns the log of what they are asked; all must be let go at the end."""
    actors: list[Actor] = []
    log: list[str] = []
    directory.mkdir(mode=0o700)

    def begin(*processes: Played, **answers: Answer) -> list[str]:
        actors.extend(Actor(directory, one, log, answers.get(one.about["role"])) for one in processes)
        return log

    yield begin
    for actor in actors:
        actor.thread.join(10)
        assert not actor.thread.is_alive(), f"{actor.name} was left connected"
