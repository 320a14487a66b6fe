"""Processes titled as those of a vLLM server, each with a real control socket and the plugin's answers, but no vLLM."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

ROOT = """
import os, socket, subprocess, sys
listening = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
exec(open("opening").read())
engine = subprocess.Popen(["VLLM::EngineCore", "engine", " " * 140], executable=os.environ["PYTHON"])
sys.stdin.read()
engine.kill()
engine.wait()
server.close()
"""
ENGINE = """
import signal
exec(open("opening").read())
open("ready", "w").close()
signal.pause()
"""
OPENING = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
from spantrace.control import ControlServer, default_directory
from spantrace.vllm_adapter.plugin import handle
server = ControlServer(default_directory(), handle)
"""
IN_A_CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


def containers_are_permitted() -> bool:
    """Whether this user may start what stands for a container here."""
    with contextlib.suppress(OSError):
        return subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True, check=False).returncode == 0
    return False


def until(holds: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Wait until `holds()` does; AssertionError where it never does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@contextlib.contextmanager
def fake_server(
    place: Path, port: int, sockets: Path, around: Sequence[str] = (), first: str = "true"
) -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """The root and the engine of `vllm serve org/model --port PORT` in `place`, their sockets in `sockets`.

    They run in what the command `around` makes, once the shell command `first` has run there.
    """
    for name, program in {"serve": ROOT, "engine": ENGINE, "opening": OPENING}.items():
        (place / name).write_text(program)
    environment = {**os.environ, "SPANTRACE_DIR": str(sockets), "PYTHON": sys.executable, "PORT": str(port)}
    script = f'{first} && exec -a vllm "$PYTHON" serve org/model --port {port}'
    command = [*around, "bash", "-c", script]
    with subprocess.Popen(command, cwd=place, env=environment, stdin=subprocess.PIPE) as started:
        try:
            until((place / "ready").exists, "the stand-in of a server did not start")
            yield _family(psutil.Process(started.pid))
        finally:
            for process in psutil.Process(started.pid).children(recursive=True):
                process.resume()
            assert started.stdin is not None
            started.stdin.close()
            started.wait(30)


def _family(started: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
    """The root and the engine, which is there once both listen."""
    titled = {process.cmdline()[0]: process for process in (started, *started.children(recursive=True))}
    return titled["vllm"], titled["VLLM::EngineCore"]
