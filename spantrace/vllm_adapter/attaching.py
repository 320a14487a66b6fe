"""Puts the plugin into a running server that was started without it, by `sys.remote_exec` (PEP 768, Python 3.14)."""

from __future__ import annotations

import inspect
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spantrace.directories import private_directory
from spantrace.errors import PTRACE, SpantraceError, no_process
from spantrace.vllm_adapter import lending
from spantrace.vllm_adapter.servers import Server

LENT = ("spantrace", "optimized", "analyzers", "msgpack", "numpy", "nvtx", "packaging", "psutil")
"""What runs in a recorded process, and what that imports."""
TAKEN_UP_S = 15.0
"""A process runs the script between two of its bytecodes, which an idle engine comes to with its next request."""
_POLL_S = 0.02


def attach(server: Server, directory: Path) -> None:
    """Have the engines and workers that do not answer open their sockets in `directory`; SpantraceError if not."""
    for member in (*server.of_role("worker"), *server.of_role("engine")):
        if not member.reachable:
            attach_process(member.pid, directory)


def attach_process(pid: int, directory: Path, patience: float = TAKEN_UP_S) -> None:
    """Have one process open its socket; SpantraceError says why it did not within `patience` seconds."""
    execute: Any = getattr(sys, "remote_exec", None)
    if execute is None:
        here = ".".join(map(str, sys.version_info[:2]))
        raise SpantraceError(f"--attach needs Python 3.14 here and in the server, this is {here}; try --sample")
    script = private_directory(directory) / f"{pid}.attach.py"
    answer = script.with_suffix(".answer")
    answer.unlink(missing_ok=True)
    script.write_text(script_for(directory, answer))
    try:
        execute(pid, str(script))
    except (OSError, RuntimeError) as error:
        script.unlink()
        raise SpantraceError(_why(pid, error)) from error
    _await(pid, answer, patience)
    said = answer.read_text()
    for path in (script, answer):
        path.unlink()
    if said:
        raise SpantraceError(f"process {pid} could not load spantrace's plugin: {said}")


def script_for(directory: Path, answer: Path) -> str:
    """What a process runs to be attached: `lending`, with our packages and where they are."""
    specs = [spec for name in LENT if (spec := find_spec(name)) is not None and spec.origin]
    folders = list(dict.fromkeys(str(Path(str(spec.origin)).parents[1]) for spec in specs))
    arguments = ([*LENT], folders, str(directory.absolute()), str(answer.absolute()))
    return f"{inspect.getsource(lending)}\n\nattach_this_process{arguments!r}\n"


def _await(pid: int, answer: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not answer.exists():
        if not Path(f"/proc/{pid}").exists():
            raise SpantraceError(f"process {pid} ended before it was attached")
        if time.monotonic() > deadline:
            raise SpantraceError(
                f"process {pid} has not taken up the plugin in {patience:g} s: it does so with its next request; "
                "put load on the server and record again"
            )
        time.sleep(_POLL_S)


def _why(pid: int, error: OSError | RuntimeError) -> str:
    """What kept the script from reaching the process."""
    if isinstance(error, PermissionError):
        return f"this user may not attach to process {pid}; {PTRACE}"
    if not os.path.exists(f"/proc/{pid}"):
        return no_process(pid)
    cause = error.__cause__ or error
    return (
        f"process {pid} cannot be attached to ({cause}); it must run the Python of this command, "
        f"{sys.version_info.major}.{sys.version_info.minor}, with remote debugging on, or try --sample"
    )
