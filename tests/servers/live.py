"""A recording that runs beside a test, and the witness inside a server's processes that tests ask."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spantrace.frames import Decoder, Frame
from spantrace.loading import load
from spantrace.recording import Recording

if TYPE_CHECKING:
    from cpu_server import CpuServer

PROGRAM = str(Path(sys.executable).with_name("spantrace"))
LONG_S = 240.0
POLL_S = 0.05
MANY = ("--cycles", "1000000", "--idle-timeout", "120")
"""Options of a recording that a test ends, also where the machine stands still for seconds."""
NS = 2_000_000
DELAY = ("--delay", str(NS // 1000), "--max-slowdown", "0.5", "--cycles", "20")
"""What `sensitivity` is asked for where a span is held up, and by how many nanoseconds."""


def wait_until(condition: Callable[[], Any], what: str, timeout: float = LONG_S) -> Any:
    """Wait until `condition()` is true and return it; an error that names `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(POLL_S)
    return found


class LiveRecording:
    """`spantrace record` of `server` as a process of its own, every cycle in detail unless told otherwise."""

    def __init__(self, server: CpuServer, path: Path, *arguments: str, **options: Any) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self._seen, self._decoder = 0, Decoder()
        self._frames: list[Frame] = []
        where = ["--dir", server.environment["SPANTRACE_DIR"]]
        self.process = subprocess.Popen(
            [PROGRAM, "record", f":{server.port}", "-o", str(path), "--detail-every", "1", *where, *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def armed(self) -> LiveRecording:
        """Wait until the last process of the server records; returns the recording."""
        return self._when(self._engine_armed, "the recording's start")

    def has(self, cycles: int) -> LiveRecording:
        """Wait until so many steps were written; returns the recording."""
        return self._when(lambda: self.steps() >= cycles, f"{cycles} cycles")

    def settled(self) -> LiveRecording:
        """Wait until the journal holds the end of every step that was scheduled by now; returns the recording."""
        drained = self._drains() + 1
        return self._when(
            lambda: self._drains() > drained and self._steps("schedule") <= self._steps("update"),
            "two more drains, and the end of every step",
        )

    def steps(self) -> int:
        """How many scheduled steps the journal holds."""
        return len(self._steps("schedule"))

    def _when(self, condition: Callable[[], bool], what: str) -> LiveRecording:
        """Wait for a condition, which comes true while the process runs; returns the recording."""
        wait_until(lambda: condition() or self.process.poll() is not None, what)
        assert self.process.poll() is None, self.process.communicate()[1]
        return self

    def _steps(self, fact: str) -> set[int]:
        return {values[0] for frame in self.frames() for kind, *values in frame.get("facts", ()) if kind == fact}

    def _drains(self) -> int:
        """How often the engine has sent all it had."""
        engine = next(frame["process"] for frame in self.frames() if self._is_engine(frame))
        return sum(frame["type"] == "health" and frame["process"] == engine for frame in self.frames())

    def frames(self) -> list[Frame]:
        """The frames of the journal so far."""
        if self.part.exists():
            with self.part.open("rb") as file:
                file.seek(self._seen)
                data = file.read()
            self._seen += len(data)
            self._frames.extend(self._decoder.feed(data))
        return self._frames

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C, then as `ended`."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self, timeout: float = LONG_S) -> tuple[int, str]:
        """The exit code and what was said, once the process has ended."""
        _, said = self.process.communicate(timeout=timeout)
        return self.process.returncode, said

    def _engine_armed(self) -> bool:
        return any(self._is_engine(frame) for frame in self.frames())

    @staticmethod
    def _is_engine(frame: Frame) -> bool:
        return frame["type"] == "armed" and frame["about"]["role"] == "engine"


@contextmanager
def live(server: CpuServer, path: Path, *arguments: str) -> Iterator[LiveRecording]:
    """A recording that lasts as long as the block, ended by Ctrl-C; it is killed where the block fails."""
    running = LiveRecording(server, path, *arguments)
    try:
        yield running.armed()
        code, said = running.interrupt()
        assert code == 0, said
    finally:
        running.process.kill()
        running.process.communicate()


def record(server: CpuServer, path: Path, run: Callable[[], Any], *arguments: str) -> Recording:
    """The recording of all that `run()` does: it begins and ends while the server is idle."""
    with live(server, path, *MANY, "--warmup", "0", *arguments) as running:
        run()
        server.speculation()
        running.settled()
    return load(path)


def assert_clean(recording: Recording) -> None:
    """Complete, nothing lost, no hook that failed or was not found."""
    assert not recording.partial
    for process in recording.header["processes"]:
        assert (process["lost"], process["hook_errors"], process["first_error"]) == (0, 0, ""), process
        assert process["missing"] == [], process
        assert process["stopped"] is True


def assert_same_tokens(server: CpuServer, prompts: Sequence[str], path: Path, tokens: int, cycles: int) -> None:
    """Greedy streams are the same before, while and after their cycles, at least so many, are recorded in detail."""
    before = server.complete(prompts, tokens)
    with live(server, path, *MANY) as running:
        during = server.complete(prompts, tokens)
        running.has(cycles)
    assert before == during == server.complete(prompts, tokens)
    assert all(len(set(stream)) > 5 for stream in before)
    assert_clean(load(path))


class Witness:
    """The test plugin in the processes of one server."""

    def __init__(self, server: CpuServer, directory: Path) -> None:
        self._directory = directory
        self._all = [process.pid for process in server.processes()]
        self.engine = server.process("VLLM::EngineCore").pid
        self.workers = [p.pid for p in server.processes() if " ".join(p.cmdline()).startswith("VLLM::Worker")]

    def ask(self, pid: int, name: str, *arguments: Any) -> Any:
        """One question to the process `pid`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(LONG_S)
            peer.connect(os.path.relpath(self._directory / f"{pid}.sock"))
            peer.sendall(json.dumps([name, *arguments]).encode() + b"\n")
            return json.loads(b"".join(iter(lambda: peer.recv(1 << 16), b"")))

    def remember(self) -> None:
        """Let the engine and the workers remember every function of vLLM."""
        for pid in (self.engine, *self.workers):
            assert self.ask(pid, "remember") > 1000

    def changed(self) -> list[str]:
        """The functions of vLLM that are not what they were, in any process."""
        return [name for pid in (self.engine, *self.workers) for name in self.ask(pid, "changed")]

    def observed(self) -> list[list[int]]:
        """Drafts, drafted tokens and accepted tokens per position of each step that the API server counted."""
        logs = [path for pid in self._all if (path := self._directory / f"{pid}.observed").exists()]
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def kinds(recording: Recording) -> Counter[str]:
    """How many cycles of each kind."""
    from spantrace.spans import Kind

    return Counter(Kind(kind).name for kind in recording.cycles.kind.tolist())
