"""The Unix socket that each process of a server opens, and the client that finds and calls them.

Sockets lie in a private directory (mode 0700, sockets 0600), one per process, named by its pid. A connection
carries msgpack frames: one request, then what its handler sends. A peer of another user, one that sends
garbage, sends nothing or does not read is cut off; nothing a peer does reaches the server's own threads.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from spantrace.directories import pid_here, private_directory, socket_of
from spantrace.errors import SpantraceError
from spantrace.frames import LARGEST_FRAME, LARGEST_REQUEST, Decoder, Frame, encode

REQUEST_TIMEOUT_S, CONNECT_TIMEOUT_S, SEND_TIMEOUT_S = 5.0, 2.0, 10.0
"""The last is long, for a recorder on a machine with too much other work is slow, and not gone."""
MOST_CONNECTIONS = 8
RETRY_S = 0.5
"""Pause after a connection could not be accepted, as when the process has no file descriptor left."""


def default_directory(environment: Mapping[str, str] = os.environ, user: int | None = None) -> Path:
    """Where sockets lie: $SPANTRACE_DIR, else a private folder of this user, or of another process's."""
    if chosen := environment.get("SPANTRACE_DIR"):
        return Path(chosen)
    runtime = environment.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "spantrace" if runtime else Path(f"/tmp/spantrace-{os.getuid() if user is None else user}")


class Connection:
    """One side of a control connection: frames out with a timeout, frames in as they arrive."""

    def __init__(self, peer: socket.socket, largest: int = LARGEST_FRAME) -> None:
        self._socket = peer
        self._decoder = Decoder(largest)
        self._pending: list[Frame] = []
        self._garbage: ValueError | None = None
        # Not select(), which knows no descriptor from 1024 on: a server can have that many open.
        self._poller = select.poll()
        self._poller.register(peer, select.POLLIN)
        peer.settimeout(SEND_TIMEOUT_S)

    def fileno(self) -> int:
        """The socket's descriptor, for select()."""
        return self._socket.fileno()

    def peer(self) -> int:
        """The pid of the process at the other end, 0 for one that this process's namespace does not hold."""
        return _peer_of(self._socket)[0]

    def send(self, *frames: Frame) -> None:
        """Send frames in one call; OSError where the peer is gone or does not read."""
        self._socket.sendall(b"".join(map(encode, frames)))

    def receive(self, timeout: float) -> Frame | None:
        """The next frame, or None after `timeout` seconds; EOFError when the peer has closed, ValueError on garbage."""
        deadline = time.monotonic() + timeout
        while not self._pending:
            if self._garbage:
                raise self._garbage
            if not self._poller.poll(math.ceil(max(0.0, deadline - time.monotonic()) * 1000)):
                return None
            data = self._socket.recv(1 << 18)
            if not data:
                raise EOFError("the peer closed the connection")
            try:
                self._pending.extend(self._decoder.feed(data))
            except ValueError as error:
                self._garbage = error
        return self._pending.pop(0)

    def close(self) -> None:
        """Close the socket; closing twice is fine."""
        self._socket.close()


Handler = Callable[[Frame, Connection], None]


class ControlServer:
    """Listens in a daemon thread and answers each connection in one of its own."""

    def __init__(self, directory: Path, handle: Handler) -> None:
        self._handle = handle
        self._path = private_directory(directory) / f"{os.getpid()}.sock"
        self._owner = os.getpid()
        self._closed = False
        self._peers: set[socket.socket] = set()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._listener = _listen(self._path)
        self._thread = threading.Thread(target=self._accept, name="spantrace-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket file, unless it is that of the process this one was forked from."""
        self._closed = True
        if self._owner == os.getpid():
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def abandon(self) -> None:
        """Close what a fork inherited, so that a peer sees it when the parent dies; the file is the parent's."""
        self._closed = True
        self._listener.close()
        for peer in self._peers:
            peer.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(RETRY_S)
                continue
            if _peer_of(peer)[1] in (os.getuid(), 0) and self._free.acquire(blocking=False):
                self._answer(peer)
            else:
                peer.close()

    def _answer(self, peer: socket.socket) -> None:
        self._peers.add(peer)
        try:
            threading.Thread(target=self._serve, args=(peer,), name="spantrace-peer", daemon=True).start()
        except RuntimeError:
            # The process may start no more threads.
            self._peers.discard(peer)
            self._free.release()
            peer.close()

    def _serve(self, peer: socket.socket) -> None:
        connection = Connection(peer, LARGEST_REQUEST)
        try:
            request = connection.receive(REQUEST_TIMEOUT_S)
            if request is not None:
                self._handle(request, connection)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            connection.close()
            self._peers.discard(peer)
            self._free.release()


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, where it appears only once it listens: before, a client would think it dead."""
    fresh = path.with_suffix(".new")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fresh.unlink(missing_ok=True)
        with _short_path(fresh) as address:
            listener.bind(address)
        fresh.chmod(0o600)
        listener.listen(socket.SOMAXCONN)
        fresh.replace(path)
    except OSError:
        listener.close()
        raise
    return listener


def processes(directory: Path) -> list[int]:
    """Pids here of those that listen in `directory`; socket files that nobody listens to any more are removed.

    Of a process that cannot be seen from here, as of another container, it is the pid that it has there.
    """
    found = []
    for path in sorted(directory.glob("*.sock")) if directory.is_dir() else []:
        with contextlib.suppress(OSError, SpantraceError):
            if path.stem.isdecimal() and path.is_socket() and (peer := _listener(path)) is not None:
                found.append(pid_here(int(path.stem), peer))
    return found


def _listener(path: Path) -> int | None:
    """The pid of who listens, 0 for one that cannot be seen from here; None, and the file removed, for nobody."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as peer, _short_path(path) as address:
        peer.settimeout(CONNECT_TIMEOUT_S)
        try:
            peer.connect(address)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return None
        return _peer_of(peer)[0]


def connect(directory: Path, pid: int) -> Connection:
    """Connect to the process `pid`, its pid here or in its container; SpantraceError where it does not answer."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(CONNECT_TIMEOUT_S)
    try:
        with _short_path(socket_of(directory, pid)) as address:
            peer.connect(address)
    except OSError as error:
        peer.close()
        raise SpantraceError(f"process {pid} does not answer on its spantrace socket: {error}") from error
    return Connection(peer)


def ask(directory: Path, pid: int, request: Frame, timeout: float = 2.0) -> Frame:
    """Send one request and return the one answer."""
    connection = connect(directory, pid)
    try:
        connection.send(request)
        answer = connection.receive(timeout)
    except (OSError, EOFError, ValueError) as error:
        raise SpantraceError(f"process {pid} broke off the connection: {error}") from error
    finally:
        connection.close()
    if answer is None:
        raise SpantraceError(f"process {pid} did not answer within {timeout:g} s")
    return answer


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A name for `path` that fits the 107 bytes of a socket address, however deep its directory lies."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _peer_of(peer: socket.socket) -> tuple[int, int]:
    """Pid and user of the other side."""
    pid, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid), int(user)
