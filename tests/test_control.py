"""The control socket is private, answers one request a connection, and no peer can hold it up or harm it."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spantrace import control
from spantrace.control import MOST_CONNECTIONS, Connection, ControlServer, ask, connect, private_directory, processes
from spantrace.errors import SpantraceError
from spantrace.frames import Frame, encode

PID = os.getpid()


def echo(request: Frame, connection: Connection) -> None:
    connection.send({"type": "echo", "request": request})


Start = Callable[..., ControlServer]


@pytest.fixture
def sockets(tmp_path: Path) -> Path:
    return tmp_path / "sockets"


@pytest.fixture
def start(sockets: Path) -> Iterator[Start]:
    """Starts servers in `sockets`, and sees to it that each one's file and threads go."""
    before = set(threading.enumerate())
    started: list[ControlServer] = []

    def begin(handle: control.Handler = echo, directory: Path = sockets) -> ControlServer:
        started.append(ControlServer(directory, handle))
        return started[-1]

    yield begin
    for server in started:
        server.close()
    assert not (sockets / f"{PID}.sock").exists()
    assert until(lambda: set(threading.enumerate()) <= before)


def until(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until `holds()` does."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def raw(directory: Path) -> socket.socket:
    """A bare connection to this process's own server."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(10)
    with control._short_path(directory / f"{PID}.sock") as address:
        peer.connect(address)
    return peer


def test_a_request_is_answered(start: Start, sockets: Path) -> None:
    start()
    assert ask(sockets, PID, {"type": "x", "n": [1, None, "ü"]}) == {
        "type": "echo",
        "request": {"type": "x", "n": [1, None, "ü"]},
    }
    assert processes(sockets) == [PID]


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_directory_and_socket_are_private_whatever_the_umask(umask: int, start: Start, sockets: Path) -> None:
    before = os.umask(umask)
    try:
        start()
    finally:
        os.umask(before)
    assert mode(sockets) == 0o700
    assert mode(sockets / f"{PID}.sock") == 0o600


@pytest.mark.parametrize("bits", [0o701, 0o710, 0o770, 0o777, 0o1777])
def test_a_directory_that_others_can_enter_is_refused(bits: int, tmp_path: Path) -> None:
    tmp_path.chmod(bits)
    with pytest.raises(SpantraceError, match="not a private directory of this user"):
        private_directory(tmp_path)


def test_somebody_elses_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    assert private_directory(tmp_path) == tmp_path
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(SpantraceError, match="not a private directory of this user"):
        private_directory(tmp_path)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    file, link, looped = tmp_path / "file", tmp_path / "link", tmp_path / "looped"
    file.write_text("")
    looped.symlink_to(looped)
    (tmp_path / "real").mkdir(mode=0o700)
    link.symlink_to(tmp_path / "real")
    with pytest.raises(SpantraceError, match="not a private directory"):
        private_directory(link)
    for path in (file, looped, file / "below", tmp_path / ("x" * 300)):
        with pytest.raises(SpantraceError, match=r"cannot be a directory of sockets: .*; set SPANTRACE_DIR"):
            private_directory(path)


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANTRACE_DIR", "/somewhere")
    assert control.default_directory() == Path("/somewhere")
    monkeypatch.delenv("SPANTRACE_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert control.default_directory() == Path("/run/user/7/spantrace")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert control.default_directory() == Path(f"/tmp/spantrace-{os.getuid()}")


def test_a_peer_of_another_user_is_cut_off(start: Start, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    monkeypatch.setattr(control, "_peer_of", lambda peer: (1, 12345))
    with pytest.raises(SpantraceError, match="broke off the connection"):
        ask(sockets, PID, {"type": "x"})
    monkeypatch.undo()
    with contextlib.closing(raw(sockets)) as peer:
        assert control._peer_of(peer) == (os.getpid(), os.getuid())


def test_a_deep_directory_fits_a_socket_address(start: Start, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    server = start(directory=deep)
    assert len(str(deep)) > 200
    assert processes(deep) == [PID]
    assert ask(deep, PID, {"type": "x"})["type"] == "echo"
    server.close()
    assert processes(deep) == []


def test_files_that_nobody_listens_to_are_removed_and_others_are_left(start: Start, sockets: Path) -> None:
    start()
    stale = sockets / "999999.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(stale))
    others = [sockets / "123.sock", sockets / "notes.txt", sockets / "name.sock"]
    for other in others:
        other.write_text("mine")
    assert processes(sockets) == [PID]
    assert not stale.exists()
    assert all(other.exists() for other in others)
    assert processes(sockets / "none") == processes(others[0]) == []


def test_a_new_process_takes_over_the_file_of_a_dead_one_with_its_pid(start: Start, sockets: Path) -> None:
    sockets.mkdir(mode=0o700)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(sockets / f"{PID}.sock"))
    start()
    assert processes(sockets) == [PID]


def test_nobody_there_is_told_in_one_sentence(sockets: Path) -> None:
    for directory in (sockets, Path("/dev/null")):
        with pytest.raises(SpantraceError, match="process 77 does not answer on its spantrace socket"):
            connect(directory, 77)


def test_a_server_that_cannot_listen_leaves_nothing_open(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_short_path", lambda path: contextlib.nullcontext("x" * 200))
    with pytest.raises(OSError, match="too long"):
        ControlServer(sockets, echo)


GARBAGE = {
    "noise": bytes(range(256)) * 40,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a list": b"\x91\x01",
    "a long request": encode({"type": "x" * 70_000}),
    "a list of four billion": b"\x81\xa4type\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_cut_off_and_the_next_one_served(data: bytes, start: Start, sockets: Path) -> None:
    start()
    with contextlib.closing(raw(sockets)) as peer:
        with contextlib.suppress(OSError):
            peer.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(100) == b""
    assert ask(sockets, PID, {"type": "x"})["type"] == "echo"


def test_a_peer_that_says_nothing_or_only_bit_by_bit_is_cut_off(
    start: Start, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "REQUEST_TIMEOUT_S", 0.3)
    start()
    begin = time.monotonic()
    with contextlib.closing(raw(sockets)) as silent, contextlib.closing(raw(sockets)) as slow:
        with contextlib.suppress(OSError):
            slow.sendall(b"\x81\xa1a\xdb\x00\x00\xff\xff")
            while time.monotonic() < begin + 5:
                slow.sendall(b"x")
                time.sleep(0.05)
        assert silent.recv(100) == b""
    assert 0.25 < time.monotonic() - begin < 3


def test_a_peer_that_never_reads_is_given_up(start: Start, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SEND_TIMEOUT_S", 0.2)
    ended: list[Exception] = []

    def pour(request: Frame, connection: Connection) -> None:
        try:
            while True:
                connection.send({"data": bytes(100_000)})
        except OSError as error:
            ended.append(error)
            raise

    start(pour)
    with contextlib.closing(raw(sockets)) as peer:
        peer.sendall(encode({"type": "x"}))
        assert until(lambda: bool(ended))
    assert isinstance(ended[0], TimeoutError)


def test_a_client_that_hears_nothing_says_so(start: Start, sockets: Path) -> None:
    go = threading.Event()
    start(lambda request, connection: go.wait(10) and None)
    with pytest.raises(SpantraceError, match=f"process {PID} did not answer within 0.1 s"):
        ask(sockets, PID, {"type": "x"}, timeout=0.1)
    go.set()


def test_a_client_that_is_told_garbage_says_so(start: Start, sockets: Path) -> None:
    start(lambda request, connection: connection._socket.sendall(b"\xc1\xc1"))
    with pytest.raises(SpantraceError, match="broke off the connection: not a frame"):
        ask(sockets, PID, {"type": "x"})


def test_only_so_many_are_served_at_once(start: Start, sockets: Path) -> None:
    start()
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(contextlib.closing(raw(sockets))) for _ in range(MOST_CONNECTIONS)]
        with pytest.raises(SpantraceError, match="broke off"):
            ask(sockets, PID, {"type": "x"})
        peers[0].sendall(encode({"type": "x"}))
        assert peers[0].recv(1000)
        assert peers[0].recv(1000) == b""
        assert until(lambda: answers(sockets))
    assert until(lambda: answers(sockets))


def answers(sockets: Path) -> bool:
    with contextlib.suppress(SpantraceError):
        return bool(ask(sockets, PID, {"type": "x"})["type"] == "echo")
    return False


def test_a_process_out_of_descriptors_serves_again_once_it_has_some(
    start: Start, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "RETRY_S", 0.01)
    start()
    folder = os.open(sockets, os.O_RDONLY)
    address = f"/proc/self/fd/{folder}/{PID}.sock"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        peer.connect(address)
        time.sleep(0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connection = Connection(peer)
    connection.send({"type": "x"})
    assert connection.receive(5.0) is not None
    connection.close()
    os.close(folder)


def test_a_descriptor_beyond_select_is_no_obstacle() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = """
import fcntl, resource, socket, sys
from spantrace.control import Connection
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, int(sys.argv[1])))
near, far = socket.socketpair()
high = socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD, 1500))
one, other = Connection(high), Connection(far)
other.send({"a": 1})
print(one.fileno(), one.receive(5), one.receive(0))
"""
    if 0 <= hard < 2000:
        pytest.skip("the system grants too few descriptors")
    command = [sys.executable, "-c", program, str(hard)]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "1500 {'a': 1} None"


def test_a_closed_server_refuses_and_closing_twice_is_fine(start: Start, sockets: Path) -> None:
    server = start()
    server.close()
    server.close()
    with pytest.raises(SpantraceError, match="does not answer"):
        ask(sockets, PID, {"type": "x"})


def test_a_fork_abandons_what_it_inherited_and_opens_its_own(sockets: Path) -> None:
    program = """
import os, sys, threading, time
from pathlib import Path
from spantrace.control import ControlServer, ask, connect, processes
directory, gone = Path(sys.argv[1]), threading.Event()

def handle(request, connection):
    connection.send({"pid": os.getpid()})
    if request["type"] == "stay":
        gone.wait(30)

server = ControlServer(directory, handle)
parent, (reads, writes) = os.getpid(), os.pipe()
stays = connect(directory, parent)
stays.send({"type": "stay"})
assert stays.receive(5) == {"pid": parent}
child = os.fork()
if child == 0:
    os.close(writes)
    server.abandon()
    mine = ControlServer(directory, handle)
    os.read(reads, 1)
    mine.close()
    server.close()
    os._exit(0)
while not (directory / f"{child}.sock").exists():
    time.sleep(0.01)
assert processes(directory) == sorted([parent, child])
assert ask(directory, child, {"type": "x"}) == {"pid": child}
assert ask(directory, parent, {"type": "x"}) == {"pid": parent}
gone.set()
try:
    print(stays.receive(5))
except EOFError:
    print("the child does not hold the parent's connection")
stays.close()
os.write(writes, b"x")
assert os.waitpid(child, 0)[1] == 0
assert processes(directory) == [parent]
server.close()
"""
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", program, str(sockets)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("the child does not hold the parent's connection\n", "")
    assert not list(sockets.iterdir())
