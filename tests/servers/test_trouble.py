"""What goes wrong around a recording: the server goes on, or dies as it would have, and what was recorded is kept."""

from __future__ import annotations

import itertools
import json
import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import USUAL
from live import MANY, LiveRecording, Witness, assert_clean, wait_until

from spantrace.control import connect, processes
from spantrace.loading import load
from spantrace.recording import Recording

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer
    from cpu_server.client import Load

    from tests.conftest import Cli

CUT_OFF = re.compile(r"process \d+ broke off while it was recorded: .*; the recording is partial")
ALL = (*MANY, "--warmup", "0")


@pytest.fixture
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
def serving(server: CpuServer) -> Iterator[Load]:
    """Load on the server, which answers every request and is still answering at the end of the block."""
    with server.load(4, max_tokens=32) as load:
        yield load
        answered = load.requests
        wait_until(lambda: load.requests >= answered + 8, "eight more answers")
    assert load.errors == []


def assert_recordable(server: CpuServer, path: Path) -> None:
    """The next recording of the server, under load, is complete."""
    with server.load(2):
        code, said = LiveRecording(server, path, "--cycles", "20", "--warmup", "0").ended()
    assert code == 0, said
    assert_clean(load(path))


def assert_partial(cli: Cli, path: Path) -> Recording:
    """A partial recording that can be read, and whose report says that it is partial."""
    recording = load(path)
    assert recording.partial
    report = cli("report", str(path))
    assert report.returncode == 0, report.stderr
    assert "the recording is partial: it was cut off, or a process left it" in report.stdout
    return recording


def test_killed_recorder(server: CpuServer, seer: Witness, cli: Cli, tmp_path: Path) -> None:
    with serving(server):
        running = LiveRecording(server, tmp_path / "r.spantrace", *ALL).has(cycles=30)
        assert seer.changed()
        running.process.kill()
        assert running.ended()[0] == -signal.SIGKILL
        wait_until(lambda: not seer.changed(), "the hooks coming off")
    assert len(assert_partial(cli, running.part).cycles) >= 20
    assert_recordable(server, tmp_path / "next.spantrace")


def test_stopped_recorder(server: CpuServer, seer: Witness, cli: Cli, tmp_path: Path) -> None:
    """A recorder that no longer reads: the server cuts it off, and it says so once it goes on."""
    with serving(server):
        running = LiveRecording(server, tmp_path / "r.spantrace", *ALL).has(cycles=30)
        running.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not seer.changed(), "the hooks coming off")
        running.process.send_signal(signal.SIGCONT)
        code, said = running.ended()
    assert code == 0, said
    assert CUT_OFF.search(said)
    assert_partial(cli, running.path)
    assert_recordable(server, tmp_path / "next.spantrace")


def test_full_disk(server: CpuServer, seer: Witness, cli: Cli, tmp_path: Path) -> None:
    with serving(server):
        running = LiveRecording(server, tmp_path / "r.spantrace", *ALL).has(cycles=30)
        room = running.part.stat().st_size + 3000
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (room, room))
        code, said = running.ended()
        wait_until(lambda: not seer.changed(), "the hooks coming off")
    assert code == 2
    assert said.startswith(f"spantrace: cannot write {running.part}: ")
    assert "what was recorded is kept" in said
    assert running.part.stat().st_size <= room
    assert_partial(cli, running.part)
    assert_recordable(server, tmp_path / "next.spantrace")


@pytest.mark.parametrize("calls", [0, 30])
def test_a_hook_that_raises(server: CpuServer, seer: Witness, calls: int, tmp_path: Path) -> None:
    running = LiveRecording(server, tmp_path / "r.spantrace", *ALL, "--idle-timeout", "2").armed()
    seer.ask(seer.engine, "fail_after", calls)
    try:
        with serving(server):
            code, said = running.ended()
    finally:
        seer.ask(seer.engine, "mend")
    assert seer.changed() == []
    failure = "RuntimeError: the witness refuses this step"
    if calls == 0:
        assert code == 2
        assert f"no cycle could be recorded, a hook failed: {failure}" in said
        assert list(tmp_path.iterdir()) == []
    else:
        assert code == 0, said
        assert f"a hook failed ({failure}) after " in said
        assert "the server went idle" not in said
        recording = load(running.path)
        engine = recording.header["processes"][-1]
        assert (engine["hook_errors"], engine["first_error"]) == (1, failure)
        assert (recording.cycles.step > 0).sum() == 30
    assert_recordable(server, tmp_path / "next.spantrace")


GARBAGE = [b"\x00", b"\xc1" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\xdf\xff\xff\xff\xff", b"\xa5hello" * 20_000]


def test_peers_that_misbehave(server: CpuServer, seer: Witness, socket_directory: Path, tmp_path: Path) -> None:
    pids = (seer.engine, *seer.workers)
    with serving(server), ExitStack() as stack:
        peers = []
        for pid, sent in itertools.product(pids, [*GARBAGE, *[b""] * 50]):
            peer = stack.enter_context(peer_of(socket_directory, pid))
            with suppress(BrokenPipeError):
                peer.sendall(sent)
            peers.append(peer)
        assert all(cut_off(peer) for peer in peers)
        assert set(pids) <= set(processes(socket_directory))
        assert seer.changed() == []
    assert_recordable(server, tmp_path / "next.spantrace")


def test_peers_that_never_read(server: CpuServer, seer: Witness, socket_directory: Path, tmp_path: Path) -> None:
    with serving(server):
        deaf = [connect(socket_directory, pid) for pid in (seer.engine, *seer.workers)]
        for peer in deaf:
            peer.send({"type": "record"})
        wait_until(seer.changed, "the hooks")
        wait_until(lambda: not seer.changed(), "the hooks coming off")
        for peer in deaf:
            peer.close()
    assert_recordable(server, tmp_path / "next.spantrace")


@contextmanager
def peer_of(directory: Path, pid: int) -> Iterator[socket.socket]:
    """A bare connection to the control socket of a process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(60)
        peer.connect(str(directory / f"{pid}.sock"))
        yield peer


def cut_off(peer: socket.socket) -> bool:
    """Whether the other side closes the connection, whatever it says before."""
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"VLLM_PLUGINS": "vllm_cpu_fixes"}, "its VLLM_PLUGINS='vllm_cpu_fixes' leaves spantrace out"),
        ({"SPANTRACE": "off"}, "it was started with SPANTRACE=off"),
    ],
    ids=["VLLM_PLUGINS", "off"],
)
def test_why_a_server_cannot_be_recorded(
    environment: dict[str, str], reason: str, server: CpuServer, serve: Serve, cli: Cli, tmp_path: Path
) -> None:
    deaf = serve(**USUAL, env=environment)
    engine = deaf.process("VLLM::EngineCore").pid
    listed = cli("ps", "--format", "json")
    assert listed.returncode == 0
    found = {one["root"]: one for one in json.loads(listed.stdout)["servers"]}
    for one, recordable in ((server, True), (deaf, False)):
        assert found[one.pid]["port"] == one.port
        roles = {member["role"]: member["recordable"] for member in found[one.pid]["members"]}
        assert roles == {"api": None, "engine": recordable, "worker": recordable}
    assert f"vLLM process {engine} does not load spantrace's plugin: {reason}" in " ".join(cli("ps").stdout.split())
    for target in (f":{deaf.port}", deaf.url, str(deaf.pid)):
        refused = cli("record", target, "-o", str(tmp_path / "r.spantrace"))
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"spantrace: vLLM process {engine} does not load spantrace's plugin: {reason}")
    assert list(tmp_path.iterdir()) == []


def test_targets_that_are_no_server(servers: None, cli: Cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        answers = {
            f":{port}": f"port {port} belongs to process ",
            "http://192.0.2.1:8000": "192.0.2.1 is another machine; run spantrace on it",
            "1": "process 1 is no vLLM server that spantrace can see",
            "nonsense": "'nonsense' is no :PORT, URL or pid",
        }
        told = {target: cli("record", target, "-o", str(tmp_path / "r.spantrace")) for target in answers}
    told[f":{port} closed"] = cli("record", f":{port}", "-o", str(tmp_path / "r.spantrace"))
    answers[f":{port} closed"] = f"nothing listens on port {port} here; start the server, or name its pid"
    for target, answer in answers.items():
        assert told[target].returncode == 2, target
        assert told[target].stderr.startswith(f"spantrace: {answer}"), told[target].stderr
    assert list(tmp_path.iterdir()) == []


def test_killed_worker(serve: Serve, cli: Cli, tmp_path: Path) -> None:
    """The server dies as one does that knows nothing of spantrace."""
    alone, recorded = serve(**USUAL, env={"SPANTRACE": "off"}), serve(**USUAL)
    died = kill_worker(alone)
    with recorded.load(1):
        running = LiveRecording(recorded, tmp_path / "r.spantrace", *ALL).has(cycles=30)
        assert kill_worker(recorded) == died
        code, said = running.ended()
    assert code == 0, said
    assert CUT_OFF.search(said)
    assert len(assert_partial(cli, running.path).cycles) >= 20
    assert "broke off while it was recorded" in " ".join(cli("report", str(running.path)).stdout.split())
    for command in ("record", "optimizations"):
        after = cli(command, f":{recorded.port}")
        assert after.returncode == 2
        assert after.stderr.startswith(f"spantrace: nothing listens on port {recorded.port} here")


def kill_worker(server: CpuServer) -> int | None:
    """Kill the worker and wait for the server's end; its exit code."""
    server.process("VLLM::Worker").kill()
    wait_until(lambda: not server.alive, "the end of the server")
    return server.exit_code
