"""What a person names a server by, a port or a URL of this machine, and what of its command line may be kept."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

import psutil

from spantrace.errors import SpantraceError

_SECRET = re.compile(r"(--[\w-]*(?:key|token|password|secret)(?:=|\s+))(?!--)\S+", re.IGNORECASE)


def pid_of(target: str) -> int | None:
    """The process that it names; None where it is a port or a URL."""
    return int(target) if target.isdecimal() else None


def port_of(target: str) -> int:
    """The port in ":PORT", "HOST:PORT" or a URL of this machine; SpantraceError for anything else."""
    try:
        parts = urlsplit(target if "//" in target else f"//{target}")
        port, host = parts.port, parts.hostname or "localhost"
    except ValueError as error:
        raise SpantraceError(f"{target!r} is no :PORT, URL or pid; a port is a number up to 65535") from error
    if port is None and parts.scheme in ("http", "https"):
        port = 443 if parts.scheme == "https" else 80
    if port is None:
        raise SpantraceError(f"{target!r} is no :PORT, URL or pid")
    if not _is_here(host):
        raise SpantraceError(
            f"{host} is another machine; run spantrace on it (its sockets are local), then copy the file"
        )
    return port


def _is_here(host: str) -> bool:
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise SpantraceError(f"no machine is known here as {host}; name a server of this machine as :PORT") from error
    own = {address.address.partition("%")[0] for group in psutil.net_if_addrs().values() for address in group}
    return bool(addresses & (own | {"127.0.0.1", "::1", "0.0.0.0", "::"}))


def without_secrets(command: str) -> str:
    """What follows `serve` in a server's command line, the values of its key, token and password options masked."""
    return _SECRET.sub(r"\1***", command.partition(" serve ")[2] or command)
