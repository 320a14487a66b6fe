"""The client's side of a switch against processes played by threads on real sockets, and the plan of one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from actors import Actor, Cast
from journals import ENGINE, WORKER, sync_server

import optimized
from spantrace.cli.main import run
from spantrace.control import Connection
from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.vllm_adapter import choice
from spantrace.vllm_adapter.delaying import ALLOW_DELAYS
from spantrace.vllm_adapter.launch import serve_environment
from spantrace.vllm_adapter.live import check, reset_prefix_cache, switch
from spantrace.vllm_adapter.servers import Member, Server
from spantrace.vllm_adapter.session import Session

ID = "uniform-decode-metadata"
Answer = Callable[[Connection, Actor], None]
MEMBERS = [
    Member(ENGINE, "engine", "VLLM::EngineCore", 1, True),
    Member(WORKER, "worker", "VLLM::Worker", ENGINE, True),
]
SERVER = Server(1, "vllm serve model", "0.32.0", MEMBERS)


def saying(*answers: Frame) -> Answer:
    """Answers each request in turn, and notes the ones that come after the first."""

    def answer(connection: Connection, actor: Actor) -> None:
        connection.send(answers[0])
        for following in answers[1:]:
            request = connection.receive(10)
            assert request is not None
            actor.log.append(f"{actor.name} {request['type']}")
            connection.send(following)

    return answer


PLANNED: Frame = {"type": "planned", "changes": [ID], "here": [ID]}
WAITING: Frame = {"type": "planned", "changes": [ID], "here": []}


def test_nothing_is_put_into_force_where_one_process_cannot(cast: Cast, tmp_path: Path) -> None:
    engine, worker = sync_server()
    refused = saying({"type": "refused", "why": "it does not know this vLLM"})
    log = cast(worker, engine, worker=saying(PLANNED), engine=refused)
    with pytest.raises(SpantraceError, match=r"^it does not know this vLLM$"):
        switch(SERVER, on=[ID], directory=tmp_path / "sockets")
    assert log == ["worker switch", "engine switch"]


def test_a_check_lets_all_plan_and_puts_nothing_into_force(cast: Cast, tmp_path: Path) -> None:
    engine, worker = sync_server()
    log = cast(worker, engine, worker=saying(PLANNED), engine=saying(PLANNED, {"type": "switched", "ended": []}))
    check(SERVER, on=[ID], directory=tmp_path / "sockets")
    assert log == ["worker switch", "engine switch"]


def test_a_check_says_what_a_process_refuses(cast: Cast, tmp_path: Path) -> None:
    engine, worker = sync_server()
    refused = saying({"type": "refused", "why": "it does not know this vLLM"})
    cast(worker, engine, worker=saying(PLANNED), engine=refused)
    with pytest.raises(SpantraceError, match=r"^it does not know this vLLM$"):
        check(SERVER, on=[ID], directory=tmp_path / "sockets")


def test_what_would_be_on_nowhere_is_refused(cast: Cast, tmp_path: Path) -> None:
    engine, worker = sync_server()
    log = cast(worker, engine, worker=saying(WAITING), engine=saying(WAITING, {"type": "switched", "ended": []}))
    with pytest.raises(SpantraceError, match=f"^{ID} would be on nowhere: this server has loaded none of the code"):
        switch(SERVER, on=[ID], directory=tmp_path / "sockets")
    assert log == ["worker switch", "engine switch"]


def test_what_goes_wrong_between_the_steps_is_told(cast: Cast, tmp_path: Path) -> None:
    engine, worker = sync_server()
    failed = saying(PLANNED, {"type": "refused", "why": "nothing was switched, because x"})
    log = cast(worker, engine, worker=saying(PLANNED), engine=failed)
    with pytest.raises(SpantraceError, match=r"^nothing was switched, because x$"):
        switch(SERVER, off=[ID], directory=tmp_path / "sockets")
    assert log == ["worker switch", "engine switch", "engine commit"]


def test_a_process_with_an_older_spantrace_is_named(cast: Cast, tmp_path: Path) -> None:
    unknown = {"type": "refused", "why": "unknown request 'switch'"}
    cast(sync_server()[1], worker=saying(unknown), engine=saying(unknown))
    with pytest.raises(SpantraceError, match=r"^\w+ process \d+ runs an older spantrace; restart the server$"):
        switch(SERVER, on=[ID], directory=tmp_path / "sockets")


def test_a_server_that_cannot_be_asked_says_why(tmp_path: Path) -> None:
    with pytest.raises(SpantraceError, match="process 1 has no engine process of its own"):
        switch(replace(SERVER, members=[]), on=[ID], directory=tmp_path)
    with pytest.raises(SpantraceError, match=f"process {ENGINE} does not answer on its spantrace socket"):
        reset_prefix_cache(SERVER, tmp_path)


def test_a_refused_reset_of_the_prefix_cache_is_told(cast: Cast, tmp_path: Path) -> None:
    cast(sync_server()[0], engine=saying({"type": "reset", "refused": "the engine has requests"}))
    assert reset_prefix_cache(SERVER, tmp_path / "sockets") == "the engine has requests"


@pytest.mark.parametrize(
    ("on", "off", "why"),
    [
        (
            [ID],
            [],
            f"{ID} cannot be switched live: what it replaces is captured in CUDA graphs, which would have to be ",
        ),
        ([], [ID], f"{ID} cannot be switched live: "),
        ([ID], [ID], f"{ID} cannot be on and off at once"),
        ([], ["query-build"], "query-build cannot be switched in a server: it fires in the built-in cycle only"),
        (["nonsense"], [], "no optimization is called 'nonsense'"),
    ],
)
def test_what_cannot_be_switched_live_is_refused(
    monkeypatch: pytest.MonkeyPatch, on: list[str], off: list[str], why: str
) -> None:
    known = dict(optimized.discover())
    known[ID] = replace(known[ID], live_switchable=False)
    monkeypatch.setattr(optimized, "discover", lambda: known)
    with pytest.raises(SpantraceError) as refused:
        choice.plan(on, off)
    assert str(refused.value).startswith(why)


def test_what_does_not_apply_to_this_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "running_vllm", lambda: "0.99.0")
    with pytest.raises(SpantraceError, match=f"{ID}: it does not know .* of vLLM 0.99.0"):
        choice.plan([ID], [])
    assert choice.plan([], [ID]).changes() == [], "it is off, and stays so"


def test_only_serve_allows_delays() -> None:
    inherited = {ALLOW_DELAYS: "1", "HOME": "/"}
    assert ALLOW_DELAYS not in serve_environment(inherited)
    assert serve_environment(inherited, allow_delays=True)[ALLOW_DELAYS] == "1"


def test_delays_are_refused_by_a_process_that_was_not_started_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW_DELAYS, raising=False)
    with pytest.raises(
        SpantraceError, match="this server was not started to be delayed; start it with spantrace serve"
    ):
        Session({"delays": True, "gpu": False})
    monkeypatch.setenv(ALLOW_DELAYS, "1")
    assert Session({"delays": True, "gpu": False}).delays is not None
    assert Session({"gpu": False}).delays is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["toggle"], "Missing argument 'SERVER'; see spantrace toggle --help"),
        (["toggle", ":1"], "name what to switch: --on IDS, --off IDS, or both (spantrace optimizations lists them)"),
        (["toggle", ":1", "--on", ID], "nothing listens on port 1 here; start the server, or name its pid"),
        (["sensitivity"], "Missing argument 'SERVER | built-in | RECORDING'; see spantrace sensitivity --help"),
        (["sensitivity", ":1"], "nothing listens on port 1 here; start the server, or name its pid"),
        (["sensitivity", "nonsense"], "'nonsense' is no :PORT, URL or pid"),
        (["sensitivity", "none.spantrace"], "cannot read none.spantrace: No such file or directory"),
    ],
)
def test_what_is_asked_wrongly_gets_one_sentence(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"spantrace: {why}")
    assert said.err.count("\n") == 1
