"""What server a campaign measures, and which code it says that it ran: processes of our own, no vLLM."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from spantrace.campaign import server
from spantrace.campaign.code import own_code, own_sources
from spantrace.campaign.parsing import parse
from spantrace.campaign.running import Gone
from spantrace.campaign.served import ServedServer
from spantrace.campaign.server import RunningServer
from spantrace.campaign.store import Store
from spantrace.cli.main import run
from spantrace.errors import SpantraceError
from spantrace.vllm_adapter import started
from spantrace.vllm_adapter.live import Outcome
from spantrace.vllm_adapter.servers import Member, Server
from spantrace.vllm_adapter.started import StartedServer

NAME = "uniform-decode-metadata"
PLAN = f'target = ":81"\nrepeats = 2\ncycles = 90\nwarmup = 10\noptimize = ["{NAME}"]\n[load]\nrequests = 0\n'


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port on which this process listens."""
    monkeypatch.setattr(started, "FREE_S", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


def test_a_port_that_is_taken_is_refused_before_anything_is_started(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(started, "choose", lambda ids: "")
    monkeypatch.setattr(started, "serve_command", lambda arguments: ["false"])
    who = rf"^process {os.getpid()} \(.*\) listens on port {taken} already; end it, or give the server another --port$"
    with pytest.raises(SpantraceError, match=who):
        StartedServer(["M", "--port", str(taken)], {}, (), tmp_path / "log")
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_does_not_measure_what_listens_on_its_port_already(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spantrace.campaign.served.choose", lambda _: "")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'target = "serve"\noptimize = ["{NAME}"]\n[load]\nrequests = 0\n'
        f'[serve]\narguments = ["M", "--port", "{taken}"]\n'
    )
    assert run(["ab", str(plan), "-o", str(tmp_path / "campaign")]) == 2
    assert f" listens on port {taken} already; " in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "campaign").exists()


def test_who_answers_on_the_port_of_a_server_that_starts_is_not_it(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own process does not get the port, and ends."""
    monkeypatch.setattr(started, "refuse_taken", lambda port: None)
    monkeypatch.setattr(started, "choose", lambda ids: "")
    monkeypatch.setattr(started, "_healthy", lambda port: True)
    ends = [sys.executable, "-c", "import time; time.sleep(0.3); raise SystemExit(7)"]
    monkeypatch.setattr(started, "serve_command", lambda arguments: ends)
    made = StartedServer(["M", "--port", str(taken)], {}, (), tmp_path / "log")
    with pytest.raises(SpantraceError, match="the server ended with code 7"):
        made.wait_ready(timeout=60)


class Told:
    """What the engine of a running server, which is this process, says of its sources and of what is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.on: list[str] = []
        self._root = root
        me = Member(os.getpid(), "engine", "VLLM::EngineCore", 1, True)
        found = Server(1, "vllm serve M", "0.32.0", [me])
        monkeypatch.setattr(server, "find", lambda *_: found)
        monkeypatch.setattr(server, "ask", self._ask)
        monkeypatch.setattr(server, "switched_on", lambda *_: self.on)

    def _ask(self, *_: object) -> dict[str, Any]:
        return {"type": "optimizations", "own": str(self._root), "sources": None}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Sources of ours in another place, from before this process was started."""
    root = tmp_path / "elsewhere"
    for path in ("spantrace/recorder.py", "optimized/uniform_decode_metadata/__init__.py", "optimized/one/__init__.py"):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {path}\n")
        os.utime(file, (0, 0))
    return root


def test_the_code_of_a_running_server_is_what_it_imported(
    monkeypatch: pytest.MonkeyPatch, own: Path, tmp_path: Path
) -> None:
    told = Told(monkeypatch, own)
    store = Store(tmp_path / "campaign", parse(PLAN, str))
    target, (stock, _, fix) = RunningServer(store, tmp_path), store.plan.arms
    of_stock, of_fix = target.code(stock), target.code(fix)
    assert of_stock != of_fix
    told.on = ["one"]
    assert target.code(stock) != of_stock, "what is on besides is run too"
    told.on = [NAME]
    assert target.code(stock) == of_stock, "what the plan switches is on in its own arms"
    file = own / "spantrace/recorder.py"
    file.write_text("# edited\n")
    os.utime(file, (0, 0))
    assert target.code(stock) != of_stock


def test_a_server_that_runs_what_has_been_changed_since_is_refused(
    monkeypatch: pytest.MonkeyPatch, own: Path, tmp_path: Path
) -> None:
    Told(monkeypatch, own)
    store = Store(tmp_path / "campaign", parse(PLAN, str))
    file = own / "spantrace/recorder.py"
    late = psutil.Process().create_time() + 5
    os.utime(file, (late, late))
    with pytest.raises(Gone, match=f"^the server was started before {file} was changed, and may run what was there"):
        RunningServer(store, tmp_path).code(store.plan.arms[0])


def test_code_that_changes_under_a_campaign_is_not_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = parse(
        'target = "serve"\nrepeats = 2\ncycles = 90\nwarmup = 10\n[load]\nrequests = 0\n[[arm]]\nname = "x"\n'
        'arguments = ["--y"]\n[serve]\narguments = ["M", "--port", "1"]\n',
        str,
    )
    target, stock = ServedServer(plan, tmp_path, tmp_path / "log"), plan.arms[0]
    before = target.code(stock)
    monkeypatch.setattr("spantrace.campaign.served.own_code", lambda ids: "other code")
    with pytest.raises(Gone, match="the code has changed since the campaign began"):
        target.server(stock)
    assert target.code(stock) == before
    assert list(tmp_path.iterdir()) == []


def test_what_is_on_besides_is_noted(monkeypatch: pytest.MonkeyPatch, own: Path, tmp_path: Path) -> None:
    Told(monkeypatch, own)
    done = Outcome(on=("one", NAME, "two"), switched_on=(), switched_off=(), counts=[], ms=1.0)
    monkeypatch.setattr(server, "switch", lambda *_: done)
    monkeypatch.setattr(RunningServer, "_record", lambda *_: 0.25)
    with Store(tmp_path / "campaign", parse(PLAN, str)) as store:
        journal: Any = None
        measured = RunningServer(store, tmp_path).measure(store.plan.arms[0], journal)
    assert measured.notes == ("on in every arm, stock too: one, two",)
    assert measured.others == 0.25


def test_own_sources_are_of_one_place(own: Path) -> None:
    assert {path.relative_to(own).as_posix() for path in own_sources([], own)} == {"spantrace/recorder.py"}
    assert len(own_sources([NAME, "one"], own)) == 3
    assert own_code([], own) != own_code([])


@pytest.mark.parametrize("check", ["ttft < -4%", "cached_tokens == base", "latency < 5 ms"])
def test_a_gate_on_what_the_built_in_cycle_does_not_have_is_refused(
    check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    (tmp_path / "gates.toml").write_text(f"gates = ['{check}']\n")
    plan.write_text('target = "built-in"\noptimize = ["query-build"]\ngates = "gates.toml"\n')
    assert run(["ab", str(plan), "-o", str(tmp_path / "campaign"), "--dry-run"]) == 2
    name = check.split()[0]
    told = f"spantrace: gate {check!r} cannot be judged: the built-in cycle has no {name}, a server has\n"
    assert capsys.readouterr() == ("", told)
