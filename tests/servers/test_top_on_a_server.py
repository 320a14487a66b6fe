"""`spantrace top` on a live server: on a terminal, in a pipe, beside another recorder, and at its end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import USUAL
from live import LONG_S, MANY, PROGRAM, Witness, live, wait_until

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

FAST = ("--window", "0.5", "--interval", "0.8")
COLUMNS = 80


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """The usual server."""
    return serve(**USUAL)


@pytest.fixture
def seer(server: CpuServer, witness: AskWitness) -> Witness:
    """The server's witness, that knows how vLLM is without hooks."""
    seer = witness(server)
    seer.remember()
    return seer


@contextmanager
def watching(server: CpuServer, *options: str, terminal: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """`spantrace top` of the server in a pipe, or on a terminal; killed where the block fails."""
    watched = subprocess.Popen(
        [PROGRAM, "top", f":{server.port}", "--dir", server.environment["SPANTRACE_DIR"], *FAST, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    try:
        yield watched
    finally:
        watched.kill()
        watched.communicate()


def test_blocks_in_a_pipe_and_ctrl_c_with_hooks_in_force(
    server: CpuServer, seer: Witness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with watching(server) as top:
        assert top.stdout is not None
        idle = top.stdout.readline()
        with server.load(2) as load:
            block = read_block(top)
            wait_until(seer.changed, "the hooks of the next window")
            top.send_signal(signal.SIGINT)
            rest, said = top.communicate(timeout=LONG_S)
        assert (top.returncode, said) == (0, "")
    assert seer.changed() == []
    assert load.errors == []
    assert re.fullmatch(r"\d\d:\d\d:\d\d  the server is idle: no cycle in 0\.5 s; waiting for one\n", idle)
    assert "HOST ONLY  The host works " in block
    assert re.search(r"\d+ tokens/s \(median\)\s(\| )?accepted \d\.\d\d of 3 drafted", block)
    assert re.search(r"^  draft\.propose +\d+\.\d\d ", block, re.MULTILINE)
    assert re.search(r"^hooks +in force \d+\.\d of every \d+\.\d s \(\d+%\)", block, re.MULTILINE)
    assert "\x1b" not in block + rest
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_of_80_columns(server: CpuServer, seer: Witness) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, COLUMNS, 0, 0))
    with server.load(2), watching(server, "--count", "2", terminal=theirs) as top:
        os.close(theirs)
        text = read_all(ours)
        assert top.wait(LONG_S) == 0
    os.close(ours)
    assert seer.changed() == []
    assert "\x1b[1;36mHOST ONLY" in text
    colourless = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"\n|\r|\x1b\[2K", colourless)]
    assert max(map(len, lines)) <= COLUMNS
    assert sum(line.startswith("cycle ") for line in lines) >= 2


def test_another_recorder_is_named(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    with server.load(1), live(server, tmp_path / "r.spantrace", *MANY) as first:
        refused = cli("top", f":{server.port}")
        holder = first.process.pid
    assert refused.returncode == 2
    named = rf"already being recorded by process {holder} \(spantrace record :{server.port} .*\); wait until"
    assert re.search(named, refused.stderr), refused.stderr
    assert refused.stderr.count("\n") == 1


def read_block(top: subprocess.Popen[str]) -> str:
    """The next block of a pipe, up to the line on the hooks and what it goes on with."""
    assert top.stdout is not None
    found = ""
    for line in iter(top.stdout.readline, ""):
        found += line
        if line.startswith("hooks "):
            return found
    raise AssertionError(f"no block: {found}")


def read_all(terminal: int) -> str:
    """What comes on a terminal until the other side closes it."""
    found, deadline = b"", time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            found += os.read(terminal, 1 << 16)
        except OSError:  # how Linux tells that nobody writes any more
            return found.decode()
    raise TimeoutError(f"the terminal stayed open: {found[-500:]!r}")
