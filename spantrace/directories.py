"""The directory that holds a server's sockets: whose it is, and which socket is that of a process in a container.

A socket is named by the pid that its process knows itself by; in a container that is not the pid that others see.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from spantrace.errors import SpantraceError

_INNERMOST = re.compile(rb"^NSpid:.*\t(\d+)$", re.MULTILINE)


def private_directory(path: Path) -> Path:
    """Make `path` with mode 0700, or check that it is this user's own and closed to others."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = is_private(path, os.getuid())
    except OSError as error:
        raise SpantraceError(f"{path} cannot be a directory of sockets: {error.strerror}; set SPANTRACE_DIR") from error
    if not private:
        raise SpantraceError(f"{path} is not a private directory of this user; remove it or set SPANTRACE_DIR")
    return path


def is_private(path: Path, user: int) -> bool:
    """Whether it is a directory, and no link to one, of that user alone; OSError where it cannot be looked at."""
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077


def refuse_unusable(directory: Path) -> None:
    """SpantraceError where something else than a directory is there, or one that this user may not look into."""
    try:
        mode = directory.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise SpantraceError(f"{directory} cannot be looked into: {error.strerror}; run as its user") from error
    if not stat.S_ISDIR(mode):
        raise SpantraceError(
            f"{directory} is not a directory; name that of the server's sockets (--dir, SPANTRACE_DIR)"
        )
    if not os.access(directory, os.R_OK | os.X_OK):
        raise SpantraceError(f"{directory} cannot be looked into: it is closed to this user; run as its user")


def pid_inside(pid: int) -> int:
    """The pid that a process knows itself by, another one in a container; `pid` where that does not show."""
    try:
        found = _INNERMOST.search(Path(f"/proc/{pid}/status").read_bytes())
    except OSError:
        return pid
    return int(found[1]) if found else pid


def user_inside(pid: int, user: int) -> int:
    """The number by which a process knows a user, another one where it has a user namespace of its own."""
    try:
        lines = Path(f"/proc/{pid}/uid_map").read_text().splitlines()
    except OSError:
        return user
    for inside, outside, count in (map(int, line.split()) for line in lines):
        if outside <= user < outside + count:
            return inside + user - outside
    return user


def pid_here(named: int, peer: int) -> int:
    """The pid that a socket named by `named` is found under here, `peer` being who listens (0: not seen from here)."""
    return peer if pid_inside(peer) == named else named


def socket_of(directory: Path, pid: int) -> Path:
    """The socket of a process, by its pid here or by that in its container."""
    inside = directory / f"{pid_inside(pid)}.sock"
    return inside if os.path.exists(inside) else directory / f"{pid}.sock"


def seen_from_here(pid: int, path: Path) -> Path:
    """A path as a process names it, under a name that leads to the same here."""
    there = Path(f"/proc/{pid}/root{path}")
    try:
        return path if os.path.samefile(path, there) else there
    except OSError:
        return there if os.path.exists(there) else path
