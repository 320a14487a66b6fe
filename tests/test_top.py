"""`spantrace top`: windows of a played server, and what a person sees of each."""

from __future__ import annotations

import io
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from actors import Actor, Cast
from journals import ENGINE, WORKER, Played, header, sync_server
from recordings import make_recording, sampled
from rich.console import Console

from spantrace.capture import Held
from spantrace.cli.live_view import Screen, View, view
from spantrace.cli.main import run
from spantrace.control import Connection
from spantrace.errors import SpantraceError
from spantrace.recording import Recording
from spantrace.spans import Kind
from spantrace.vllm_adapter.holder import held_by
from spantrace.watching import Pace, Window, windows

BOTH = {WORKER: "worker", ENGINE: "engine"}
PACE = Pace(seconds=0.2, interval=0.3, count=2)
IDLE = "the server is idle: no cycle in 2 s; waiting for one"


def window(recording: Recording | None, why: str = "", every: int = 2) -> Window:
    return Window(recording, why, hooked=2.1, interval=5.0, detail_every=every)


def shown(*found: View | str, width: int = 80, height: int = 60, terminal: bool = True) -> str:
    """What is printed of these views, on a terminal each line as it is drawn."""
    out = io.StringIO()
    options: dict[str, Any] = {"force_terminal": terminal, "color_system": "truecolor" if terminal else None}
    console = Console(file=out, width=width, height=height, highlight=False, _environ={}, **options)
    with Screen(console) as screen:
        screen.begin("recording")
        for one in found:
            screen.show(one)
    return out.getvalue()


def drawn_lines(text: str) -> list[str]:
    """The lines of a terminal's output without colour: one ends with a line feed or where a line is erased."""
    colourless = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"\n|\r|\x1b\[2K", colourless)]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kernels", [True, False])
def test_no_line_is_longer_than_the_terminal(width: int, kernels: bool) -> None:
    made = make_recording(
        notes=["a note of more than eighty characters " * 3], **({} if kernels else {"kernels": None})
    )
    found = view(window(sampled(made)))
    lines = drawn_lines(shown(found, IDLE, found, width=width))
    assert max(map(len, lines)) <= width
    assert any(line.startswith("cycle ") for line in lines)


def test_a_terminal_shows_all_of_a_window_in_colour() -> None:
    text = shown(view(window(make_recording())))
    assert "\x1b[1;31mHOST-BOUND" in text
    plain = "\n".join(drawn_lines(text))
    assert "400 steady decode cycles" in plain
    assert re.search(r"\d+ tokens/s \(median\) \| accepted 2\.00 of 2 drafted \(100%\), length 3\.00", plain)
    assert re.search(r"^    mamba +\d\.\d\d", plain, re.MULTILINE)
    assert "in force 2.1 of every 5.0 s (42%) | spans in 1 of 2 runs" in plain
    assert re.search(r"own cost at least \d\.\d\d% then, \d\.\d\d% overall", plain)
    assert "nemotron-h-30b-a3b + dflash dflash-nemotron K=2" in plain


def test_a_low_terminal_gets_the_spans_of_the_cycle_only() -> None:
    low, high = (drawn_lines(shown(view(window(make_recording())), height=height)) for height in (24, 60))
    inside = re.compile(r"    (mamba|attention|input_prep|forward) ")
    assert any(inside.match(line) for line in high)
    assert not any(inside.match(line) for line in low)
    assert any(line.startswith("  target.metadata ") for line in low)


def test_an_idle_server_keeps_the_last_figures_on_the_terminal() -> None:
    last = shown(view(window(make_recording())), IDLE).rpartition("\x1b[1;33m")[2]
    assert IDLE in last
    assert "HOST-BOUND" in last


def test_a_pipe_gets_one_plain_block_after_another_and_no_sentence_twice() -> None:
    found = view(window(make_recording()))
    text = shown(IDLE, IDLE, found, found, IDLE, terminal=False)
    assert "\x1b" not in text
    assert "recording" not in text.splitlines()
    blocks = text.split("\n\n")
    assert [IDLE in block for block in (blocks[0], blocks[-1])] == [True, True]
    assert text.count(IDLE) == 2
    assert text.count("HOST-BOUND") == 2
    assert blocks[1].splitlines()[0].endswith("400 steady decode cycles")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_server_says_is_only_text(terminal: bool) -> None:
    assert "held by \ufffd]0;x\ufffd" in shown("held by \x1b]0;x\x07", terminal=terminal)


def test_the_figures_are_those_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_recording()
    made.save(tmp_path / "a.spantrace")
    assert run(["report", str(tmp_path / "a.spantrace")]) == 0
    report = capsys.readouterr().out.splitlines()
    text = shown(view(window(made)), width=100, terminal=False)
    rows = [line for line in text.splitlines() if re.match(r"(cycle|  ).* \d+%", line)]
    assert len(rows) > 12
    assert all(row in report for row in rows)


def test_a_window_without_a_steady_cycle_says_what_it_has() -> None:
    made = make_recording(cycles=12)
    made.cycles.kind[:] = Kind.PREFILL
    told = view(window(made))
    assert told == (
        "no steady cycle in this window whose spans are known (cycles: 12 prefill); choose a longer --window"
    )
    assert view(window(None, IDLE)) == IDLE


def test_windows_are_recorded_one_by_one_and_leave_nothing(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = cast(*sync_server(turns=300))
    made: list[dict[str, Any]] = []

    def noted(options: dict[str, Any]) -> dict[str, Any]:
        made.append(options)
        return {**header(), "options": options}

    playing = windows(tmp_path / "sockets", BOTH, PACE, noted)
    first = next(playing)
    assert first.recording is not None
    assert len(first.recording.cycles) == 300
    assert 0.2 <= first.hooked < 5
    assert log == ["worker record", "engine record", "engine stop", "worker stop"]
    for pid in BOTH:
        (tmp_path / "sockets" / f"{pid}.sock").unlink()
    cast(*sync_server(turns=0))
    second = next(playing)
    assert (second.recording, second.why) == (None, "the server is idle: no cycle in 0.2 s; waiting for one")
    assert [options["detail_every"] for options in made] == [1, 3], "by the 300 cycles of the window before"
    with pytest.raises(StopIteration):
        next(playing)
    assert os.listdir(tmp_path) == ["sockets"]


def test_a_server_that_has_ended_is_told(cast: Cast, tmp_path: Path) -> None:
    cast(*sync_server())
    playing = windows(tmp_path / "sockets", BOTH, PACE, lambda options: header())
    next(playing)
    with pytest.raises(SpantraceError, match="the server has ended: its worker process 11 does not answer any more"):
        next(playing)


def test_a_process_that_dies_within_a_window_is_told(cast: Cast, tmp_path: Path) -> None:
    def die(connection: Connection, actor: Actor) -> None:
        connection.send(actor.played.frames()[0])
        raise EOFError

    cast(*sync_server(), worker=die)
    with pytest.raises(SpantraceError, match="its worker process 11 does not answer"):
        next(windows(tmp_path / "sockets", BOTH, PACE, lambda options: header()))


def test_another_recorder_is_an_error_at_first_and_waited_for_later(cast: Cast, tmp_path: Path) -> None:
    def refuse(connection: Connection, actor: Actor) -> None:
        connection.send({"type": "refused", "held": True, "why": "it is being recorded by process 7"})

    place, only = tmp_path / "sockets", {ENGINE: "engine"}
    engine, _ = sync_server()
    cast(engine, engine=refuse)
    with pytest.raises(Held, match="process 10: it is being recorded by process 7"):
        next(windows(place, only, PACE, lambda options: header()))
    free(place)
    cast(alone())
    playing = windows(place, only, PACE, lambda options: header())
    assert next(playing).recording is not None
    free(place)
    cast(engine, engine=refuse)
    assert next(playing).why == "process 10: it is being recorded by process 7"


def free(place: Path) -> None:
    (place / f"{ENGINE}.sock").unlink()


def alone() -> Played:
    """An engine without a worker process that decodes three cycles."""
    engine, _ = sync_server()
    for step in range(1, 4):
        engine.execute(step, 1000 * step + 120).row("target.forward", 1000 * step + 150, 1000 * step + 250)
    return engine


def test_a_hook_that_fails_before_the_first_cycle_is_told(cast: Cast, tmp_path: Path) -> None:
    def fail(connection: Connection, actor: Actor) -> None:
        armed, *_, stopped = actor.played.frames()
        health = {**stopped["health"], "hook_errors": 1, "first_error": "KeyError: 'x'"}
        connection.send(armed, {"type": "health", "health": health, "sites": [], "graphs": {}})
        assert connection.receive(10) == {"type": "stop"}
        connection.send({**stopped, "health": health})

    cast(Played("engine", ENGINE), engine=fail)
    with pytest.raises(SpantraceError, match=r"a hook failed: KeyError: 'x'; please report it"):
        next(windows(tmp_path / "sockets", {ENGINE: "engine"}, PACE, lambda options: header()))


@pytest.fixture
def pair() -> Iterator[Connection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours)


def test_a_refused_recorder_is_told_which_process_holds_the_server(pair: Connection) -> None:
    refusal = held_by(pair)
    assert refusal["held"] is True
    assert f"this server is already being recorded by process {os.getpid()} (" in refusal["why"]
    assert refusal["why"].endswith("; wait until that recording ends")
    pair.close()
    without = "this server is already being recorded; wait until that recording ends"
    assert held_by(pair)["why"] == held_by(None)["why"] == without


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["/usr/bin/python3", "/opt/bin/spantrace", "record", ":8000"], "process 7 (spantrace record :8000)"),
        (["python3", "-c", "x" * 100], "process 7 (python3 -c ...)"),
        (
            ["spantrace", "record", ":8000", "--cycles", "100000", "--warmup", "100", "-o", "cc13.spantrace"],
            "process 7 (spantrace record :8000 --cycles 100000 --warmup 100 -o ...)",
        ),
        ([], "process 7"),
    ],
)
def test_a_recorder_is_named_by_its_command(
    command: list[str], named: str, pair: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process:
        cmdline: Callable[[], list[str]] = staticmethod(lambda: command)

    monkeypatch.setattr("psutil.Process", lambda pid: Process())
    monkeypatch.setattr(Connection, "peer", lambda self: 7)
    assert f"already being recorded by {named};" in held_by(pair)["why"]
    monkeypatch.setattr(Connection, "peer", lambda self: 0)
    assert "already being recorded by a process of another container;" in held_by(pair)["why"]


@pytest.mark.parametrize("options", [["--window", "4", "--interval", "3"], ["--window", "nan"], ["--count", "0"]])
def test_windows_that_cannot_be_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", ":1", *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_server_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert run(["top", f":{port}"]) == 2
    assert capsys.readouterr().err == (
        f"spantrace: nothing listens on port {port} here; start the server, or name its pid (spantrace ps)\n"
    )
