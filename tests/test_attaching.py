"""The plugin in a process that was started without it: the script by hand, and by `sys.remote_exec` where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spantrace.control import ask
from spantrace.errors import SpantraceError
from spantrace.vllm_adapter import attaching
from spantrace.vllm_adapter.attaching import attach_process, script_for

if TYPE_CHECKING:
    from tests.conftest import Cli

BUSY = """
import sys, time
print("on", flush=True)
while True:
    time.sleep(0.01)
"""
BY_HAND = """
import sys, time
exec(compile(open(sys.argv[1]).read(), "script", "exec"), {})
names = ("click", "rich", "scipy", "spantrace.vllm_adapter.session", "psutil", "msgpack", "numpy")
found = []
for name in names:
    try:
        __import__(name)
        found.append(name)
    except ImportError:
        pass
print(*found, flush=True)
time.sleep(60)
"""
IDLE = "spantrace: no cycle in 1 s: the server is idle; put load on it while it is recorded"
attachable = pytest.mark.skipif(not hasattr(sys, "remote_exec"), reason="needs Python 3.14")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python without this environment's packages: `start(program, *arguments)`."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: str, options: tuple[str, ...] = ("-I", "-S")) -> subprocess.Popen[str]:
        command = [sys.executable, *options, "-c", program, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_script_opens_the_socket_and_lends_only_what_a_recording_needs(
    start: Start, sockets: Path, tmp_path: Path
) -> None:
    script, answer = tmp_path / "script.py", tmp_path / "answer"
    script.write_text(script_for(sockets, answer))
    process = start(BY_HAND, str(script))
    assert said(process).split() == ["spantrace.vllm_adapter.session", "psutil", "msgpack", "numpy"]
    assert answer.read_text() == ""
    told = ask(sockets, process.pid, {"type": "describe"})
    assert (told["type"], told["pid"], told["vllm"]) == ("description", process.pid, "")
    refused = ask(sockets, process.pid, {"type": "nonsense"})
    assert refused["type"] == "refused"


def test_a_process_that_has_spantrace_uses_its_own(start: Start, sockets: Path, tmp_path: Path) -> None:
    script, answer = tmp_path / "script.py", tmp_path / "answer"
    script.write_text(script_for(sockets, answer))
    program = BY_HAND.replace(
        "names =", "lent = [one for one in sys.meta_path if type(one).__name__ == 'Lender']\nnames ="
    )
    process = start(program.replace("print(*found", "print(len(lent), *found"), str(script), options=())
    assert said(process).startswith("0 click rich")


def test_what_fails_in_the_process_is_answered_and_raises_nothing_there(
    start: Start, sockets: Path, tmp_path: Path
) -> None:
    script, answer = tmp_path / "script.py", tmp_path / "answer"
    sockets.chmod(0o755)
    script.write_text(script_for(sockets, answer))
    process = start(BY_HAND, str(script))
    assert "spantrace" in said(process)
    assert answer.read_text() == (
        f"SpantraceError: {sockets} is not a private directory of this user; remove it or set SPANTRACE_DIR"
    )
    assert list(sockets.iterdir()) == []


@pytest.fixture
def engine() -> Iterator[int]:
    """A Python without spantrace that is titled as vLLM's engine and runs no step."""
    command = ["VLLM::EngineCore", "-I", "-S", "-c", BUSY]
    environment = {**os.environ, "VLLM_PLUGINS": "others"}
    with subprocess.Popen(
        command, executable=sys.executable, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert said(process) == "on\n"
        yield process.pid
        process.kill()


def test_record_attaches_what_is_deaf(engine: int, sockets: Path, cli: Cli, tmp_path: Path) -> None:
    command = ("record", str(engine), "--dir", str(sockets), "-o", str(tmp_path / "r.spantrace"), "--idle-timeout", "1")
    deaf = cli(*command)
    assert deaf.returncode == 2
    assert "VLLM_PLUGINS='others' leaves spantrace out" in deaf.stderr
    attached = cli(*command, "--attach")
    if hasattr(sys, "remote_exec"):
        assert attached.returncode == 3
        assert IDLE in attached.stderr
        assert ask(sockets, engine, {"type": "describe"})["title"].startswith("VLLM::EngineCore")
        assert IDLE in cli(*command).stderr
    else:
        assert attached.returncode == 2
        assert attached.stderr.startswith("spantrace: --attach needs Python 3.14 here and in the server")
    assert list(tmp_path.iterdir()) == [sockets]


@pytest.mark.skipif(hasattr(sys, "remote_exec"), reason="this Python can attach")
def test_an_older_python_says_what_it_takes(sockets: Path) -> None:
    with pytest.raises(SpantraceError, match=r"--attach needs Python 3.14 here and in the server, this is 3.\d+; try"):
        attach_process(os.getpid(), sockets)
    assert list(sockets.iterdir()) == []


@attachable
def test_a_running_process_is_attached(start: Start, sockets: Path) -> None:
    process = start(BUSY)
    assert said(process) == "on\n"
    attach_process(process.pid, sockets)
    assert ask(sockets, process.pid, {"type": "describe"})["pid"] == process.pid
    assert [path.name for path in sockets.iterdir()] == [f"{process.pid}.sock"]
    attach_process(process.pid, sockets)
    assert process.poll() is None


@attachable
def test_a_process_that_executes_nothing_is_told_and_attached_later(start: Start, sockets: Path) -> None:
    process = start("print('on', flush=True); input(); print('went on', flush=True); input()")
    assert said(process) == "on\n"
    with pytest.raises(SpantraceError, match=r"has not taken up the plugin in 0.5 s: it does so with its next request"):
        attach_process(process.pid, sockets, patience=0.5)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert said(process) == "went on\n"
    assert ask(sockets, process.pid, {"type": "describe"})["pid"] == process.pid


@attachable
def test_what_cannot_be_attached_is_told_in_a_sentence(
    start: Start, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as foreign:
        with pytest.raises(SpantraceError, match=f"process {foreign.pid} cannot be attached to .* or try --sample"):
            attach_process(foreign.pid, sockets)
        foreign.kill()
    with pytest.raises(SpantraceError, match=f"there is no process {foreign.pid}; try spantrace ps"):
        attach_process(foreign.pid, sockets)
    deaf = start(BUSY, options=("-I", "-S", "-X", "disable-remote-debug"))
    assert said(deaf) == "on\n"
    with pytest.raises(SpantraceError, match=f"process {deaf.pid} cannot be attached to"):
        attach_process(deaf.pid, sockets)
    assert list(sockets.iterdir()) == []

    def forbidden(pid: int, script: str) -> None:
        raise PermissionError

    monkeypatch.setattr(attaching.sys, "remote_exec", forbidden)
    with pytest.raises(SpantraceError, match=f"this user may not attach to process {deaf.pid}; run as its user"):
        attach_process(deaf.pid, sockets)
