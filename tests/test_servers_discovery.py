"""Which server a target names, what each of its processes is, and a true reason where one cannot be recorded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from fake_servers import fake_server

from spantrace.control import ControlServer
from spantrace.errors import SpantraceError
from spantrace.vllm_adapter import command_line
from spantrace.vllm_adapter.deaf import why_deaf
from spantrace.vllm_adapter.plugin import handle
from spantrace.vllm_adapter.servers import Member, Server, discover, engine_and_workers, find, role_of, roles

if TYPE_CHECKING:
    from tests.conftest import Cli


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of this machine on which this test process, which is no vLLM, listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


FAKE_SERVER = """
(exec -a "VLLM::EngineCore" bash -c '(exec -a "VLLM::Worker_TP0" sleep 60) & sleep 60; true') &
read -r
kill 0
"""


@pytest.fixture
def fake_vllm(tmp_path: Path, free_port: int) -> Iterator[psutil.Process]:
    """Processes titled as those of `vllm serve org/model --port PORT`, without a control socket."""
    (tmp_path / "serve").write_text(FAKE_SERVER)
    command = ["vllm", "serve", "org/model", "--port", str(free_port)]
    environment = {**os.environ, "VLLM_PLUGINS": "lora_resolver"}
    with subprocess.Popen(
        command, executable="/bin/bash", cwd=tmp_path, env=environment, stdin=subprocess.PIPE, start_new_session=True
    ) as root:
        process = psutil.Process(root.pid)
        while not any(child.cmdline()[:1] == ["VLLM::Worker_TP0"] for child in process.children(recursive=True)):
            time.sleep(0.01)
        yield process
        assert root.stdin is not None
        root.stdin.close()
        root.wait(10)


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("VLLM::EngineCore", "engine"),
        ("VLLM::EngineCore_DP1", "engine"),
        ("VLLM::Worker", "worker"),
        ("VLLM::Worker_TP0_EP0", "worker"),
        ("VLLM::APIServer_1", "api"),
        ("VLLM::DPCoordinator", "other"),
        ("/usr/bin/python3 /usr/bin/vllm serve m", "api"),
        ("", "api"),
    ],
)
def test_the_role_is_in_the_title(title: str, role: str) -> None:
    assert role_of(title) == role


@pytest.mark.parametrize(
    ("command", "port", "model"),
    [
        ("/venv/bin/python /venv/bin/vllm serve org/model", 8000, "org/model"),
        ("vllm serve org/model --port 8123", 8123, "org/model"),
        ("vllm serve org/model --port=8123 --port 9000", 9000, "org/model"),
        ("vllm serve --model org/model --port=x", 8000, "org/model"),
        ("vllm serve --model=org/model", 8000, "org/model"),
        ("vllm serve 'a model with spaces'", 8000, "a model with spaces"),
        ("vllm serve it's", 8000, "it's"),
        ("vllm serve", 8000, "-"),
        ("python -m vllm.entrypoints.openai.api_server --model org/model --port 7", 7, "org/model"),
        ("python -m vllm.entrypoints.openai.api_server --model org/model", 8000, "org/model"),
        ("python train.py", None, "-"),
        ("", None, "-"),
    ],
)
def test_port_and_model_are_read_from_the_command(command: str, port: int | None, model: str) -> None:
    server = Server(1, command, "0.33.0")
    assert (server.port(), server.model()) == (port, model)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ("""--speculative-config '{"method": "dflash", "model": "d"}'""", "dflash"),
        ("""--speculative-config='{"method": "dspark"}'""", "dspark"),
        (
            """--speculative-config {"model": "a b", "method": "dflash", "draft": 3} --port 1""",
            "dflash",
        ),
        ("--speculative-config.method eagle3 --speculative-config.model d", "eagle3"),
        ("""--speculative-config '{"model": "d"}'""", None),
        ("""--speculative-config '{"method": 7}'""", None),
        ("--speculative-config [dflash]", None),
        ("--speculative-config " + "[" * 100_000, None),
        ("", None),
    ],
    ids=range(9),
)
def test_the_method_is_read_from_the_command(options: str, method: str | None) -> None:
    assert Server(1, f"vllm serve org/model {options}", "0.33.0").method() == method


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "'' is no :PORT, URL or pid"),
        (":", "':' is no :PORT, URL or pid"),
        ("²", "'²' is no :PORT, URL or pid"),
        ("model.spantrace", "'model.spantrace' is no :PORT, URL or pid"),
        (":eight", "':eight' is no :PORT, URL or pid; a port is a number up to 65535"),
        (":99999", "':99999' is no :PORT, URL or pid; a port is a number up to 65535"),
        ("http://[::1", "'http://[::1' is no :PORT, URL or pid; a port is a number up to 65535"),
        ("ftp://localhost", "'ftp://localhost' is no :PORT, URL or pid"),
        ("http://a..b:80", "no machine is known here as a..b; name a server of this machine as :PORT"),
        ("http://no-such-host.invalid:80", "no machine is known here as no-such-host.invalid;"),
        ("http://192.0.2.1:8000/v1", "192.0.2.1 is another machine; run spantrace on it"),
        ("4000000000", "there is no process 4000000000"),
        ("9" * 30, f"there is no process {'9' * 30}"),
        ("1", "process 1 is no vLLM server that spantrace can see"),
    ],
)
def test_a_target_that_names_no_server_is_told_why(target: str, why: str, sockets: Path) -> None:
    with pytest.raises(SpantraceError) as caught:
        find(target, sockets)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", [":{}", "localhost:{}", "http://127.0.0.1:{}/v1", "http://[::1]:{}", "0.0.0.0:{}"])
def test_a_port_nobody_listens_on(target: str, free_port: int, sockets: Path) -> None:
    with pytest.raises(SpantraceError, match=f"nothing listens on port {free_port} here"):
        find(target.format(free_port), sockets)


def test_a_port_of_another_program(listener: int, sockets: Path) -> None:
    said = rf"port {listener} belongs to process {os.getpid()} \(.+\), which is no vLLM server that spantrace can see"
    with pytest.raises(SpantraceError, match=said):
        find(f":{listener}", sockets)


def test_a_port_of_a_process_that_does_not_show(listener: int, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [connection._replace(pid=None) for connection in psutil.net_connections("tcp")]
    monkeypatch.setattr(psutil, "net_connections", lambda kind: seen)
    with pytest.raises(SpantraceError, match=f"port {listener} belongs to another user or a container"):
        find(f":{listener}", sockets)


def test_a_process_with_a_socket_is_found_by_pid_and_by_port(listener: int, sockets: Path) -> None:
    control = ControlServer(sockets, handle)
    try:
        for target in (str(os.getpid()), f":{listener}", f"http://localhost:{listener}"):
            found = find(target, sockets)
            assert [member.pid for member in found.members if member.reachable] == [os.getpid()]
        with pytest.raises(SpantraceError, match="has no engine process of its own"):
            engine_and_workers(found)
    finally:
        control.close()


def test_a_server_without_sockets_is_found_and_told_why(
    fake_vllm: psutil.Process, free_port: int, sockets: Path
) -> None:
    found = next(server for server in discover(sockets) if server.root == fake_vllm.pid)
    assert (found.model(), found.port()) == ("org/model", free_port)
    engine, worker = found.of_role("engine")[0], found.of_role("worker")[0]
    assert (worker.parent, engine.reachable, worker.reachable) == (engine.pid, False, False)
    for target in (f":{free_port}", str(fake_vllm.pid), str(worker.pid)):
        assert find(target, sockets) == found
    with pytest.raises(SpantraceError, match=rf"{engine.pid} .*VLLM_PLUGINS='lora_resolver' leaves spantrace out"):
        engine_and_workers(found)


def test_a_process_that_answers_garbage_is_left_out(sockets: Path) -> None:
    control = ControlServer(sockets, lambda request, connection: connection._socket.sendall(b"\xc1"))
    try:
        assert os.getpid() not in {member.pid for server in discover(sockets) for member in server.members}
    finally:
        control.close()


def member(pid: int, role: str, parent: int | None = None, *, reachable: bool = True) -> Member:
    return Member(pid, role, "", parent, reachable)


def test_the_engine_and_its_own_workers_are_recorded() -> None:
    members = [member(1, "api"), member(2, "engine", 1), member(3, "worker", 2), member(4, "worker", 9)]
    workers, engine = engine_and_workers(Server(1, "", "", members))
    assert (engine.pid, [one.pid for one in workers]) == (2, [3])


def test_one_of_several_engines_is_named_by_its_pid() -> None:
    members = [member(1, "api"), member(2, "engine", 1), member(3, "worker", 2), member(4, "engine", 1)]
    server = Server(1, "", "", members)
    with pytest.raises(SpantraceError, match=r"this server has 2 engines .*; name one by its pid: 2, 4"):
        engine_and_workers(server)
    workers, engine = engine_and_workers(server, 2)
    assert (engine.pid, [one.pid for one in workers]) == (2, [3])
    assert engine_and_workers(server, 4)[0] == []
    assert [*roles(server, 2).items()] == [*((worker.pid, "worker") for worker in workers), (2, "engine")]


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"SPANTRACE": "off"}, "it was started with SPANTRACE=off; restart it without"),
        ({"SPANTRACE": "OFF"}, "it was started with SPANTRACE=off; restart it without"),
        ({"VLLM_PLUGINS": ""}, "its VLLM_PLUGINS='' leaves spantrace out; restart it with spantrace in that list"),
        ({"VLLM_PLUGINS": "a,b"}, "its VLLM_PLUGINS='a,b' leaves spantrace out"),
        ({"VLLM_PLUGINS": "a,spantrace", "SPANTRACE_DIR": "/x"}, "does not load spantrace's plugin: install spantrace"),
        ({"SPANTRACE_DIR": "/etc/passwd"}, "could open no socket, /etc/passwd is not a private directory of its user"),
        ({}, "install spantrace into the server's environment and restart it"),
    ],
)
def test_why_a_process_has_no_socket(environment: dict[str, str], why: str, sockets: Path) -> None:
    environment = {"PATH": os.environ["PATH"], **environment}
    command, pipe = ["bash", "-c", "echo started; read -r"], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        said = why_deaf(process.pid, sockets)
        process.communicate(b"\n")
    assert why in said
    assert said.startswith(f"vLLM process {process.pid} ")


def test_a_process_whose_environment_is_hidden(sockets: Path) -> None:
    assert f"has no socket in {sockets} and its environment cannot be read" in why_deaf(1 << 30, sockets)


def test_a_process_that_hangs_is_said_not_to_answer(sockets: Path) -> None:
    control = ControlServer(sockets, handle)
    try:
        assert f"vLLM process {os.getpid()} does not answer, it is very busy or hangs" in why_deaf(os.getpid(), sockets)
    finally:
        control.close()


@pytest.mark.parametrize("missing", [False, True])
def test_a_wrong_directory_is_told_from_the_servers_own(
    missing: bool, tmp_path: Path, free_port: int, sockets: Path, cli: Cli
) -> None:
    other = tmp_path / "other"
    if not missing:
        other.mkdir()
    with fake_server(tmp_path, free_port, sockets) as (_, engine):
        for command in (("record", f":{free_port}", "-o", str(tmp_path / "r.spantrace")), ("ps",)):
            said = cli(*command, "--dir", str(other), env={**os.environ, "COLUMNS": "500"})
            there = f"{other}, which does not exist" if missing else str(other)
            why = f"has no socket in {there}; the server's are in {sockets}: try --dir {sockets}"
            assert f"vLLM process {engine.pid} {why}" in said.stdout + said.stderr
    assert other.exists() is not missing


def test_a_file_for_a_directory_is_refused(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "file"
    file.touch()
    for command in (("ps",), ("record", ":1", "-o", str(tmp_path / "r.spantrace"))):
        said = cli(*command, env={**os.environ, "SPANTRACE_DIR": str(file)})
        assert said.returncode == 2
        assert said.stderr == (
            f"spantrace: {file} is not a directory; name that of the server's sockets (--dir, SPANTRACE_DIR)\n"
        )


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_directory_of_another_user_is_not_said_to_be_empty(sockets: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from spantrace.vllm_adapter.servers import discover
folder = os.open(sys.argv[1], os.O_PATH)
os.setresuid(65534, 65534, 65534)
for path in (f"/proc/self/fd/{folder}", f"/proc/self/fd/{folder}/in"):
    try:
        discover(Path(path))
    except Exception as error:
        print(type(error).__name__, error)
"""
    (sockets / "in").mkdir()
    command = [sys.executable, "-c", program, str(sockets)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert [line.partition("/proc")[0] for line in said] == ["SpantraceError "] * 2
    assert "cannot be looked into: it is closed to this user; run as its user" in said[0]
    assert "cannot be looked into: Permission denied; run as its user" in said[1]


def test_a_stopped_engine_is_said_to_be_stopped(tmp_path: Path, free_port: int, sockets: Path) -> None:
    with fake_server(tmp_path, free_port, sockets) as (root, engine):
        engine.suspend()
        found = find(f":{free_port}", sockets)
        assert [(one.pid, one.role, one.reachable) for one in found.members] == [
            (root.pid, "api", True),
            (engine.pid, "engine", False),
        ]
        why = rf"vLLM process {engine.pid} does not answer, it is stopped; continue it \(kill -CONT {engine.pid}\)"
        with pytest.raises(SpantraceError, match=why):
            engine_and_workers(found)
        engine.resume()
        assert engine_and_workers(find(f":{free_port}", sockets))[1].reachable


def test_titles_that_are_vllms() -> None:
    assert command_line.is_vllm("python -m vllm.entrypoints.openai.api_server --model m")
    assert command_line.is_vllm("/venv/bin/python3 /venv/bin/vllm serve m")
    assert not command_line.is_vllm("vim vllm serve.txt")
    assert not command_line.is_vllm("vllm bench serve --model m")
    assert not command_line.is_vllm("grep it's")
