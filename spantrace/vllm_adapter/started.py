"""A server that a command starts for itself with `spantrace serve`, waits for, and stops with all its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from spantrace.errors import SpantraceError
from spantrace.vllm_adapter.launch import choose, serve_command, serve_environment
from spantrace.vllm_adapter.seen import described, listening
from spantrace.vllm_adapter.servers import Server

READY_S = 1800.0
STOP_S = 30.0
FREE_S = 3.0
"""How long a port may still be taken by processes that are ending."""
_POLL_S = 0.5


class StartedServer:
    """`vllm serve ARGUMENTS` with `optimize` on from the start; what it says goes to the file `log`.

    Where `allow_delays`, its spans may be held up.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        optimize: Sequence[str],
        log: Path,
        *,
        allow_delays: bool = False,
    ) -> None:
        command = serve_command(tuple(arguments))
        chosen = choose(",".join(optimize) or "none")
        ours = {**serve_environment(os.environ, chosen, allow_delays), **environment}
        self.port = port_of_arguments(arguments)
        refuse_taken(self.port)
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                command, env=ours, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        """Whether its root process runs."""
        return self._process.poll() is None

    def wait_ready(self, timeout: float = READY_S) -> None:
        """Wait until it answers; SpantraceError, and it is stopped, where it does not."""
        deadline = time.monotonic() + timeout
        try:
            while not (_healthy(self.port) and self._listens()):
                if not self.alive:
                    raise SpantraceError(f"the server ended with code {self._process.returncode}; {self._log} says why")
                if time.monotonic() > deadline:
                    raise SpantraceError(f"the server did not answer within {timeout:g} s; {self._log} says why")
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    def _listens(self) -> bool:
        """Whether it is this server that answers, and not one that took the port while it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            return not {root.pid, *(one.pid for one in root.children(recursive=True))}.isdisjoint(listening(self.port))
        return False

    def stop(self) -> None:
        """End every process of the server, politely at first; stopping twice is fine."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            family = [root, *root.children(recursive=True)]
            self._process.terminate()
            psutil.wait_procs(family, timeout=STOP_S)
        # Its process group outlives a root that was killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def port_of_arguments(arguments: Sequence[str]) -> int:
    """The port that `vllm serve ARGUMENTS` will listen on."""
    return Server(0, " ".join(["vllm", "serve", *arguments]), "").port() or 8000


def refuse_taken(port: int) -> None:
    """SpantraceError where somebody listens on the port, such as what a campaign left behind that was killed."""
    deadline = time.monotonic() + FREE_S
    while (pids := listening(port)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if not pids:
        return
    known = next((described(pid) for pid in pids if pid), "somebody else")
    raise SpantraceError(f"{known} listens on port {port} already; end it, or give the server another --port")


def _healthy(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5.0):
            return True
    except (URLError, OSError):
        return False
