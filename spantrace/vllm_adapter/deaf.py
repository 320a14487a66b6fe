"""Why a running vLLM process cannot be asked: it is held up, its socket is elsewhere, or it has none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from spantrace.control import default_directory, processes
from spantrace.directories import is_private, seen_from_here, socket_of, user_inside
from spantrace.vllm_adapter.launch import PLUGIN

SAMPLED = ", or look at it from outside: spantrace record --sample"


def why_deaf(pid: int, directory: Path) -> str:
    """Why a vLLM process does not answer on a socket in `directory`, in one sentence with what to do."""
    whose = f"vLLM process {pid} "
    try:
        process = psutil.Process(pid)
        if pid in processes(directory):
            return whose + _held_up(process)
        environment = _environment(process)
        place = _directory_of(process, environment)
    except psutil.Error:
        return f"{whose}has no socket in {directory} and its environment cannot be read; run as the server's user"
    return whose + (_left_out(environment) or _elsewhere(process, place, directory) or _not_loaded(process, place))


def _held_up(process: psutil.Process) -> str:
    if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return f"does not answer, it is stopped; continue it (kill -CONT {process.pid})"
    return "does not answer, it is very busy or hangs; try again, or look at it: spantrace record --sample"


def _left_out(environment: dict[str, str]) -> str:
    """What it was started with that keeps the plugin out; nothing where that does not."""
    start, chosen = "does not load spantrace's plugin: ", environment.get("VLLM_PLUGINS")
    if environment.get("SPANTRACE", "").lower() == "off":
        return start + "it was started with SPANTRACE=off; restart it without" + SAMPLED
    if chosen is not None and PLUGIN not in chosen.split(","):
        left_out = f"its VLLM_PLUGINS={chosen!r} leaves spantrace out; "
        return start + left_out + "restart it with spantrace in that list" + SAMPLED
    return ""


def _elsewhere(process: psutil.Process, place: Path, directory: Path) -> str:
    """That its socket is in `place`, where it is there."""
    if not os.path.exists(socket_of(place, process.pid)):
        return ""
    missing = "" if os.path.exists(directory) else ", which does not exist"
    return f"has no socket in {directory}{missing}; the server's are in {place}: try --dir {place}"


def _not_loaded(process: psutil.Process, place: Path) -> str:
    with contextlib.suppress(OSError):
        if not is_private(place, process.uids().real):
            return (
                f"could open no socket, {place} is not a private directory of its user; restart it with SPANTRACE_DIR"
            )
    return (
        "does not load spantrace's plugin: install spantrace into the server's environment and restart it "
        "(or wait: it opens a second after start)"
    )


def _directory_of(process: psutil.Process, environment: dict[str, str]) -> Path:
    """Where its socket is to be, under a name that leads there from here."""
    user = user_inside(process.pid, process.uids().real)
    return seen_from_here(process.pid, Path(process.cwd()) / default_directory(environment, user))


def _environment(process: psutil.Process) -> dict[str, str]:
    """What a process was started with; one that has written its title over it inherited it from its parent."""
    return next((found for one in [process, *process.parents()] if (found := one.environ())), {})
