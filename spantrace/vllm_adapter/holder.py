"""Which recorder holds a server, as another one that is refused is told."""

from __future__ import annotations

import contextlib
import textwrap
from pathlib import Path

from spantrace.control import Connection
from spantrace.frames import Frame

PROGRAM = "spantrace"
LONGEST = 60


def held_by(recorder: Connection | None) -> Frame:
    """The refusal of a second recording while `recorder` is at the other end of the first."""
    by = ""
    with contextlib.suppress(OSError):  # that recording ends this moment
        by = f" by {_process(recorder.peer())}" if recorder is not None else ""
    why = f"this server is already being recorded{by}; wait until that recording ends"
    return {"type": "refused", "held": True, "why": why}


def _process(pid: int) -> str:
    import psutil

    try:
        words = psutil.Process(pid).cmdline() if pid else []
    except psutil.Error:
        words = []
    if not words:
        return f"process {pid}" if pid else "a process of another container"
    names = [Path(word).name for word in words]
    command = [PROGRAM, *words[names.index(PROGRAM) + 1 :]] if PROGRAM in names else words
    return f"process {pid} ({textwrap.shorten(' '.join(command), LONGEST, placeholder=' ...')})"
