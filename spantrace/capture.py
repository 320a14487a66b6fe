"""The client's side of a recording: starts it in every process of a server, journals what comes, stops it.

The workers start first and the engine stops first, so that every step the engine numbers in between is seen by
its workers whole.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spantrace.control import Connection, connect
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.frames import Frame
from spantrace.journal import Journal

ARM_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 10.0


class Held(SpantraceError):
    """Another recorder holds the server; the sentence says which."""


@dataclass(frozen=True)
class Until:
    """When a recording ends: after so many decode cycles or so many seconds, whichever is given and comes first."""

    cycles: int | None = None
    seconds: float | None = None
    idle: float = IDLE_TIMEOUT_S


class Capture:
    """One recording of `members`, each pid with its role, the engine last.

    `steps` counts the engine's steps so far that ran anything, `cycles` those of them that only decoded; `failure` is
    the first thing that a hook failed with.
    """

    def __init__(self, directory: Path, members: dict[int, str], journal: Journal, options: Frame) -> None:
        self._directory, self._members, self._journal, self._options = directory, members, journal, options
        self._connections: list[Connection] = []
        self._lost: set[int] = set()
        self.failure = ""
        self.cycles = self.steps = 0
        self.note = ""

    def __enter__(self) -> Capture:
        """Start every process's recording, the engine's last; none stays on when one refuses."""
        try:
            for index, (pid, role) in enumerate(self._members.items()):
                connection = connect(self._directory, pid)
                self._connections.append(connection)
                connection.send({"type": "record", **self._options})
                self._await_armed(index, pid, role, connection)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise SpantraceError(f"process {pid} broke off: {error}") from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, until: Until, progress: Callable[[int], None] = lambda cycles: None) -> None:
        """Journal frames until the end that `until` names; SpantraceError when no cycle comes at all."""
        started = last_step = time.monotonic()
        while not self._done(until, started):
            before = self.steps
            if not self.listen(0.1):
                return
            progress(self.cycles)
            now = time.monotonic()
            last_step = now if self.steps > before else last_step
            if now - last_step > until.idle and (until.seconds is None or not self.steps):
                self._give_up(until.idle)
                return

    def run_more(self, cycles: int, idle: float, being: str) -> None:
        """Journal so many more decode cycles; SpantraceError where the load ends, `being` what the server is then."""
        wanted = self.cycles + cycles
        self.run(Until(cycles=wanted, idle=idle))
        if self.cycles < wanted:
            why = self.note or "the recording ended"
            raise SpantraceError(f"{why}; keep load on the server for as long as it is {being}", EXIT_NOT_COMPARABLE)

    def listen(self, seconds: float) -> bool:
        """Journal what has arrived, or arrives first within so many seconds; False once a process is gone."""
        select.select(self._connections, [], [], seconds)
        for index, connection in enumerate(self._connections):
            try:
                while (frame := connection.receive(0)) is not None:
                    self._keep(index, frame)
            except (OSError, EOFError, ValueError) as error:
                return self._lose(index, error)
        return True

    def pause(self) -> None:
        """Take every process's hooks out of force; what is under way then is in no complete cycle."""
        for index in reversed(range(len(self._connections))):
            self._ask([index], {"type": "pause"}, "paused")

    def resume(self) -> None:
        """Put the hooks into force again."""
        for index in range(len(self._connections)):
            self._ask([index], {"type": "resume"}, "resumed")

    def delay(self, request: Frame) -> list[Frame]:
        """Ask every process for a delay; their answers, which come once it is in force there."""
        return self.ask({"type": "delay", **request}, "delayed")

    def ask(self, request: Frame, answer: str, timeout: float = STOP_TIMEOUT_S) -> list[Frame]:
        """Send every process a request at once; their answers, of the type `answer`, in the order of the members."""
        return self._ask(range(len(self._connections)), request, answer, timeout)

    def stop(self) -> bool:
        """Stop the engine, then the workers, and journal their last frames; True when all of them answered."""
        complete = True
        for index in reversed(range(len(self._connections))):
            complete &= self._stop(index)
        if complete:
            self._journal.write({"type": "end"})
        elif self.note:
            self._journal.write({"type": "note", "text": self.note})
        return complete

    def close(self) -> None:
        """Close every connection; each process then removes its hooks by itself."""
        for connection in self._connections:
            connection.close()

    def _await_armed(self, index: int, pid: int, role: str, connection: Connection) -> None:
        answer = connection.receive(ARM_TIMEOUT_S)
        if answer is None:
            raise SpantraceError(f"process {pid} did not start recording within {ARM_TIMEOUT_S:g} s")
        if answer.get("type") != "armed":
            error = Held if answer.get("held") else SpantraceError
            raise error(f"process {pid}: {answer.get('why', 'it refused to record')}")
        about: Frame = {"pid": pid, "role": role}
        about |= {name: answer[name] for name in ("missing", "sites", "graphs", "refused") if name in answer}
        self._keep(index, {"type": "armed", "about": about, "calibration": answer.get("calibration", {})})

    def _done(self, until: Until, started: float) -> bool:
        enough = until.cycles is not None and self.cycles >= until.cycles
        return enough or (until.seconds is not None and time.monotonic() - started >= until.seconds)

    def nothing(self, idle: str) -> SpantraceError:
        """Why no cycle was recorded: a hook's failure, a lost process, or what `idle` says of the server."""
        if self.failure:
            return SpantraceError(f"no cycle could be recorded, a hook failed: {self.failure}; please report it")
        if self._lost:
            return SpantraceError(f"no cycle was recorded: {self.note}")
        return SpantraceError(f"{idle}; put load on it while it is recorded", EXIT_NOT_COMPARABLE)

    def _give_up(self, idle: float) -> None:
        """Say why no cycle came in `idle` seconds: SpantraceError where none ever came."""
        if not self.steps:
            raise self.nothing(f"no cycle in {idle:g} s: the server is idle")
        why = f"a hook failed ({self.failure})" if self.failure else "the server went idle"
        self.note = f"{why} after {self.cycles} decode cycles"

    def _stop(self, index: int) -> bool:
        """Ask one process to stop and journal its last frames; False where it does not answer."""
        if index in self._lost:
            return False
        connection = self._connections[index]
        deadline = time.monotonic() + STOP_TIMEOUT_S
        try:
            connection.send({"type": "stop"})
            while (left := deadline - time.monotonic()) > 0:
                frame = connection.receive(left)
                if frame is not None:
                    self._keep(index, frame)
                    if frame.get("type") == "stopped":
                        return True
        except (OSError, EOFError, ValueError) as error:
            return self._lose(index, error)
        return self._lose(index, TimeoutError(f"no answer within {STOP_TIMEOUT_S:g} s"))

    def _ask(self, indices: Sequence[int], request: Frame, answer: str, timeout: float = STOP_TIMEOUT_S) -> list[Frame]:
        """Send processes a request and journal what comes of all up to the last answer; SpantraceError without one.

        One that is slow to answer keeps no other waiting, which would be cut off as the peer of one that never reads.
        """
        answers: dict[int, Frame] = {}
        deadline = time.monotonic() + timeout
        index = 0
        try:
            for index in indices:
                self._connections[index].send(request)
            while waiting := [index for index in indices if index not in answers]:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select(self._connections, [], [], left)[0]:
                    raise SpantraceError(f"{self._named(waiting[0])} was not {answer} within {timeout:g} s")
                for index, connection in enumerate(self._connections):
                    while (frame := connection.receive(0)) is not None:
                        if frame.get("type") == answer:
                            answers[index] = frame
                        else:
                            self._keep(index, frame)
        except (OSError, EOFError, ValueError) as error:
            raise SpantraceError(f"{self._named(index)} broke off instead of being {answer}: {error}") from error
        return [answers[index] for index in indices]

    def _named(self, index: int) -> str:
        pid, role = list(self._members.items())[index]
        return f"{role} process {pid}"

    def _lose(self, index: int, error: Exception) -> bool:
        """Let a process go that broke off; the first one's reason is noted."""
        self.note = self.note or f"{self._named(index)} broke off while it was recorded: {error}"
        self._lost.add(index)
        return False

    def _keep(self, index: int, frame: Frame) -> None:
        """Journal a frame and count the decode cycles in it; ValueError where it says that the process gave up."""
        if frame.get("type") == "refused":
            raise ValueError(frame.get("why"))
        self._journal.write({**frame, "process": index})
        if "health" in frame:
            self.failure = self.failure or frame["health"]["first_error"]
        for kind, *fact in frame.get("facts", ()):
            if kind == "schedule":
                _, _, tokens, _, prefilling, *_ = fact
                self.steps += tokens > 0
                self.cycles += tokens > 0 and prefilling == 0
