"""What this machine shows of processes without asking them: titles, ancestors, ports."""

from __future__ import annotations

import psutil

from spantrace.frames import Frame
from spantrace.vllm_adapter import command_line


def unasked(known: set[int]) -> list[Frame]:
    """Every process of a vLLM that this user can see, but the known ones, told as each tells of itself."""
    found: list[Frame] = []
    for process in psutil.process_iter():
        try:
            title = " ".join(process.cmdline())
            if process.pid not in known and command_line.is_vllm(title):
                ancestors = ancestors_of(process.pid)
                found.append({"pid": process.pid, "title": title, "ancestors": ancestors, "deaf": True})
        except psutil.Error:
            continue
    return found


def ancestors_of(pid: int) -> list[Frame]:
    """The ancestors of a process, its parent first; psutil.Error where it is gone."""
    return [{"pid": parent.pid, "title": title_of(parent.pid)} for parent in psutil.Process(pid).parents()]


def listening(port: int) -> list[int | None]:
    """The processes that listen on a port of this machine, None for each that is not this user's."""
    return [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", None) == port
    ]


def described(pid: int) -> str:
    """A process as messages name it, with the beginning of what it was started with."""
    return f"process {pid} ({' '.join(title_of(pid).split())[:60]})"


def title_of(pid: int) -> str:
    """What a process was started with, or has called itself since; "" for one that does not show."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""
