"""A server in a container, whose processes know themselves by other pids, is one server to those outside."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from fake_servers import IN_A_CONTAINER, containers_are_permitted, fake_server

from spantrace import directories
from spantrace.control import ask, processes
from spantrace.directories import pid_here, pid_inside, socket_of, user_inside
from spantrace.errors import SpantraceError
from spantrace.vllm_adapter.servers import Server, discover, engine_and_workers, find, roles

if TYPE_CHECKING:
    from tests.conftest import Cli

needs_containers = pytest.mark.skipif(not containers_are_permitted(), reason="this user may not start a container")
Family = tuple[psutil.Process, psutil.Process]


@pytest.fixture
def contained(tmp_path: Path, free_port: int, sockets: Path) -> Iterator[Family]:
    """The root and the engine of a server in a container that shares `sockets`."""
    with fake_server(tmp_path, free_port, sockets, IN_A_CONTAINER) as family:
        yield family


def of_the_test(servers: list[Server], port: int) -> list[Server]:
    return [server for server in servers if server.port() == port]


@needs_containers
def test_it_is_listed_once_by_the_pids_of_this_side(contained: Family, free_port: int, sockets: Path) -> None:
    root, engine = contained
    assert sorted(path.name for path in sockets.iterdir()) == ["1.sock", f"{pid_inside(engine.pid)}.sock"]
    assert pid_inside(root.pid) == 1
    (found,) = of_the_test(discover(sockets), free_port)
    assert (found.root, found.model()) == (root.pid, "org/model")
    listed = [(one.pid, one.role, one.parent, one.reachable) for one in found.members]
    assert listed[0] == (root.pid, "api", root.ppid(), True)
    assert listed[1:] == [(engine.pid, "engine", root.pid, True)]
    assert found.members[1].title == "VLLM::EngineCore engine"


@needs_containers
def test_it_is_found_by_port_and_by_the_pids_of_either_side(contained: Family, free_port: int, sockets: Path) -> None:
    root, engine = contained
    (found,) = of_the_test(discover(sockets), free_port)
    for target in (f":{free_port}", str(root.pid), str(engine.pid), "1", str(pid_inside(engine.pid))):
        assert find(target, sockets) == found
    assert roles(found, pid_inside(engine.pid)) == {engine.pid: "engine"}
    assert processes(sockets) == [root.pid, engine.pid]
    for pid in (engine.pid, pid_inside(engine.pid)):
        assert ask(sockets, pid, {"type": "describe"})["pid"] == pid_inside(engine.pid)


@needs_containers
def test_it_is_recorded(contained: Family, free_port: int, sockets: Path, cli: Cli, tmp_path: Path) -> None:
    for target in (f":{free_port}", str(contained[1].pid), str(pid_inside(contained[1].pid))):
        said = cli(
            "record", target, "--dir", str(sockets), "-o", str(tmp_path / "r.spantrace"), "--idle-timeout", "0.2"
        )
        assert said.stderr.startswith("spantrace: no cycle in 0.2 s: the server is idle"), said.stderr


@needs_containers
def test_a_directory_of_its_own_is_named_as_it_is_reached_from_here(
    tmp_path: Path, free_port: int, sockets: Path
) -> None:
    mount = f"mount -t tmpfs none {sockets} && chmod 700 {sockets}"
    with fake_server(tmp_path, free_port, sockets, IN_A_CONTAINER, mount) as (root, engine):
        assert list(sockets.iterdir()) == []
        place = f"/proc/{engine.pid}/root{sockets}"
        with pytest.raises(SpantraceError) as caught:
            engine_and_workers(find(f":{free_port}", sockets))
        assert str(caught.value) == (
            f"vLLM process {engine.pid} has no socket in {sockets}; the server's are in {place}: try --dir {place}"
        )
        assert engine_and_workers(find(str(root.pid), Path(place)))[1].reachable


def test_a_socket_is_matched_with_who_listens_by_the_pid_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(directories, "pid_inside", lambda pid: {30117: 13}.get(pid, pid))
    assert pid_here(13, 30117) == 30117
    assert pid_here(13, 0) == 13, "who listens is in a container that cannot be seen from here"
    assert pid_here(13, 77) == 13, "another process opened the socket"
    assert socket_of(tmp_path, 30117) == tmp_path / "30117.sock"
    (tmp_path / "13.sock").touch()
    assert socket_of(tmp_path, 30117) == socket_of(tmp_path, 13) == tmp_path / "13.sock"


def test_what_does_not_show_is_the_same_inside() -> None:
    assert pid_inside(1 << 30) == 1 << 30
    assert user_inside(1 << 30, 7) == 7


@needs_containers
def test_a_user_by_the_number_inside() -> None:
    command = ["unshare", "--user", "--map-user=1234", "bash", "-c", "echo started; read -r"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        outside = psutil.Process(process.pid).uids().real
        assert user_inside(process.pid, outside) == 1234
        assert user_inside(process.pid, outside + 1) == outside + 1
        process.communicate(b"\n")
