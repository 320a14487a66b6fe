"""The client's side of a recording against processes played by threads on real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from actors import Actor, Answer, Cast, play
from journals import ENGINE, WORKER, Played, header, sync_server

from spantrace import capture as capture_module
from spantrace.capture import Capture, Until
from spantrace.control import Connection
from spantrace.errors import EXIT_BAD_INPUT, EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.frames import Frame
from spantrace.journal import Journal
from spantrace.loading import load

BOTH = {WORKER: "worker", ENGINE: "engine"}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "a.spantrace", header()) as opened:
        yield opened


def prepared(journal: Journal, members: dict[int, str] = BOTH, **options: Any) -> Capture:
    return Capture(journal.path.parent / "sockets", members, journal, options)


def test_a_recording_from_start_to_stop(cast: Cast, journal: Journal) -> None:
    log = cast(*sync_server(turns=3))
    seen: list[int] = []
    with prepared(journal, nvtx=True) as capture:
        capture.run(Until(cycles=3), seen.append)
        assert capture.stop()
    assert (capture.cycles, capture.note) == (3, "")
    assert seen[-1:] == [3]
    assert log == ["worker record", "engine record", "engine stop", "worker stop"]
    recording = journal.finish()
    assert not recording.partial
    assert recording.cycles.step.tolist() == [1, 2, 3]
    processes = [(one["pid"], one["role"], one["stopped"]) for one in recording.header["processes"]]
    assert processes == [(WORKER, "worker", True), (ENGINE, "engine", True)]


def test_options_travel_with_the_request(cast: Cast, journal: Journal) -> None:
    requests: list[Frame] = []

    def note(connection: Connection, actor: Actor) -> None:
        requests.extend(actor.requests)
        play(connection, actor)

    cast(sync_server()[0], engine=note)
    with prepared(journal, {ENGINE: "engine"}, nvtx=True, gpu=False) as capture:
        assert capture.stop()
    assert requests == [{"type": "record", "nvtx": True, "gpu": False}]


def test_hooks_are_paused_and_resumed_in_every_process(cast: Cast, journal: Journal) -> None:
    def pausing(connection: Connection, actor: Actor) -> None:
        *frames, stopped = actor.played.frames()
        for answer in ("paused", "resumed"):
            request = connection.receive(10)
            assert request is not None
            actor.log.append(f"{actor.name} {request['type']}")
            connection.send(*frames, {"type": answer})
            frames = []
        assert connection.receive(10) == {"type": "stop"}
        connection.send(stopped)

    def armed(connection: Connection, actor: Actor) -> None:
        first, *_ = actor.played.frames()
        connection.send(first)
        pausing(connection, actor)

    log = cast(*sync_server(turns=3), worker=armed, engine=armed)
    with prepared(journal) as capture:
        capture.pause()
        capture.resume()
        assert capture.stop()
    assert log[2:] == ["engine pause", "worker pause", "worker resume", "engine resume"]
    assert capture.cycles == 3


def test_a_process_that_dies_instead_of_pausing_is_told(cast: Cast, journal: Journal) -> None:
    def die(connection: Connection, actor: Actor) -> None:
        first, *_ = actor.played.frames()
        connection.send(first)
        connection.receive(10)
        connection.close()

    cast(sync_server()[0], engine=die)
    with (
        prepared(journal, {ENGINE: "engine"}) as capture,
        pytest.raises(SpantraceError, match=rf"^engine process {ENGINE} broke off instead of being paused"),
    ):
        capture.pause()


def test_a_process_that_is_slow_to_answer_keeps_no_other_waiting(cast: Cast, journal: Journal) -> None:
    """The engine sends more than a socket holds before the worker, which was asked first, answers."""
    read = threading.Event()

    def flood(connection: Connection, actor: Actor) -> None:
        first, *_, stopped = actor.played.frames()
        connection.send(first)
        assert connection.receive(10) == {"type": "look"}
        connection.send(*({"type": "rows", "filler": "x" * 10_000} for _ in range(1000)))
        read.set()
        connection.send({"type": "looked", "who": "engine"})
        assert connection.receive(10) == {"type": "stop"}
        connection.send(stopped)

    def wait(connection: Connection, actor: Actor) -> None:
        first, *_, stopped = actor.played.frames()
        connection.send(first)
        assert connection.receive(10) == {"type": "look"}
        assert read.wait(5), "the engine was left to itself"
        connection.send({"type": "looked", "who": "worker"})
        assert connection.receive(10) == {"type": "stop"}
        connection.send(stopped)

    cast(*sync_server(turns=3), worker=wait, engine=flood)
    with prepared(journal) as capture:
        answers = capture.ask({"type": "look"}, "looked")
        assert [answer["who"] for answer in answers] == ["worker", "engine"]
        assert capture.stop()


def test_a_process_that_does_not_answer_in_time_is_named(cast: Cast, journal: Journal) -> None:
    def talk(connection: Connection, actor: Actor) -> None:
        first, *_ = actor.played.frames()
        connection.send(first)
        for _ in range(40):
            time.sleep(0.02)
            connection.send({"type": "rows"})

    cast(sync_server()[0], engine=talk)
    with (
        prepared(journal, {ENGINE: "engine"}) as capture,
        pytest.raises(SpantraceError, match=rf"^engine process {ENGINE} was not looked within 0.2 s$"),
    ):
        capture.ask({"type": "look"}, "looked", timeout=0.2)


def test_only_decode_cycles_count(cast: Cast, journal: Journal) -> None:
    engine = Played("engine", ENGINE)
    engine.schedule(1, 10, prefill=1).schedule(2, 20, tokens=0).schedule(3, 30).schedule(4, 40, drafts=0)
    cast(engine)
    with prepared(journal, {ENGINE: "engine"}) as capture:
        capture.run(Until(cycles=2))
        assert capture.cycles == 2
        capture.stop()


def test_a_recording_ends_after_its_seconds(cast: Cast, journal: Journal) -> None:
    cast(*sync_server())
    begin = time.monotonic()
    with prepared(journal) as capture:
        capture.run(Until(seconds=0.3, idle=0.05))
        assert capture.stop()
    assert 0.3 <= time.monotonic() - begin < 5
    assert capture.note == ""


def refuse(connection: Connection, actor: Actor) -> None:
    connection.send({"type": "refused", "why": "this server is already being recorded; wait until that recording ends"})


def vanish(connection: Connection, actor: Actor) -> None:
    raise EOFError


def babble(connection: Connection, actor: Actor) -> None:
    connection._socket.sendall(b"\xc1 garbage")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (refuse, "process 10: this server is already being recorded; wait until that recording ends"),
        (vanish, "process 10 broke off: the peer closed the connection"),
        (babble, "process 10 broke off: not a frame"),
        (lambda connection, actor: connection.send({"type": "armoured"}), "process 10: it refused to record"),
    ],
)
def test_an_engine_that_does_not_start_lets_the_worker_go(
    answer: Answer, why: str, cast: Cast, journal: Journal
) -> None:
    cast(*sync_server(), engine=answer)  # that the worker is let go is what `cast` sees to at the end
    with pytest.raises(SpantraceError, match=why) as caught, prepared(journal):
        pytest.fail("it started")
    assert caught.value.exit_code == EXIT_BAD_INPUT


def test_a_process_that_hangs_at_the_start_is_given_up(
    cast: Cast, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "ARM_TIMEOUT_S", 0.2)
    cast(*sync_server(), worker=lambda connection, actor: None)
    with pytest.raises(SpantraceError, match=r"process 11 did not start recording within 0.2 s"), prepared(journal):
        pytest.fail("it started")
    with socket.socket(socket.AF_UNIX) as engine:  # which nobody asked
        engine.connect(str(journal.path.parent / "sockets" / f"{ENGINE}.sock"))


def test_a_process_that_is_not_there(journal: Journal) -> None:
    with pytest.raises(SpantraceError, match="process 11 does not answer on its spantrace socket"), prepared(journal):
        pytest.fail("it started")


def test_a_worker_that_dies_leaves_a_partial_recording(cast: Cast, journal: Journal) -> None:
    def die(connection: Connection, actor: Actor) -> None:
        for frame in actor.played.frames()[:-1]:
            connection.send(frame)
        raise EOFError

    log = cast(*sync_server(), worker=die)
    with prepared(journal) as capture:
        capture.run(Until(cycles=1000))
        assert not capture.stop()
    assert capture.note == "worker process 11 broke off while it was recorded: the peer closed the connection"
    assert log == ["worker record", "engine record", "engine stop"]
    recording = journal.finish()
    assert recording.partial
    assert recording.cycles.step.tolist() == [1, 2, 3]
    assert [one["stopped"] for one in recording.header["processes"]] == [False, True]


def test_an_engine_that_dies_before_any_cycle_is_not_called_idle(cast: Cast, journal: Journal) -> None:
    def die(connection: Connection, actor: Actor) -> None:
        connection.send(actor.played.frames()[0])
        raise EOFError

    cast(*sync_server(), engine=die)
    with prepared(journal) as capture:
        capture.run(Until(seconds=60))
        assert not capture.stop()
        why = str(capture.nothing("no cycle was recorded: the server was idle"))
    assert why == (
        "no cycle was recorded: engine process 10 broke off while it was recorded: the peer closed the connection"
    )


def test_an_engine_that_sends_garbage_leaves_a_partial_recording(cast: Cast, journal: Journal) -> None:
    def spoil(connection: Connection, actor: Actor) -> None:
        armed, *frames, _ = actor.played.frames()
        connection.send(armed)
        assert started.wait(10)
        for frame in frames:
            connection.send(frame)
        babble(connection, actor)

    started = threading.Event()

    cast(*sync_server(), engine=spoil)
    with prepared(journal) as capture:
        started.set()
        capture.run(Until(cycles=1000))
        assert not capture.stop()
    assert capture.note.startswith("engine process 10 broke off while it was recorded: not a frame")
    recording = journal.finish()
    assert recording.partial
    assert len(recording.cycles) == 3


def test_a_process_that_gives_up_says_why(cast: Cast, journal: Journal) -> None:
    def give_up(connection: Connection, actor: Actor) -> None:
        for frame in actor.played.frames()[:-1]:
            connection.send(frame)
        connection.send({"type": "refused", "why": "RuntimeError: out of luck"})

    log = cast(*sync_server(), engine=give_up)
    with prepared(journal) as capture:
        capture.run(Until(cycles=1000))
        assert not capture.stop()
    assert capture.note == "engine process 10 broke off while it was recorded: RuntimeError: out of luck"
    assert log[-1] == "worker stop"
    assert len(journal.finish().cycles) == 3


def test_a_process_that_never_stops_is_given_up(cast: Cast, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "STOP_TIMEOUT_S", 0.2)

    def deaf(connection: Connection, actor: Actor) -> None:
        for frame in actor.played.frames()[:-1]:
            connection.send(frame)

    log = cast(*sync_server(), engine=deaf)
    with prepared(journal) as capture:
        capture.run(Until(cycles=1))
        assert not capture.stop()
    assert capture.note == "engine process 10 broke off while it was recorded: no answer within 0.2 s"
    assert log[-1] == "worker stop"
    assert len(journal.finish().cycles) == 3


def test_an_idle_server_is_told_apart(cast: Cast, journal: Journal) -> None:
    cast(Played("engine", ENGINE), Played("worker", WORKER))
    with (
        pytest.raises(SpantraceError, match=r"no cycle in 0.2 s: the server is idle; put load on it") as caught,
        prepared(journal) as capture,
    ):
        capture.run(Until(cycles=1, idle=0.2))
    assert caught.value.exit_code == EXIT_NOT_COMPARABLE


def test_a_server_that_goes_idle_ends_the_recording(cast: Cast, journal: Journal) -> None:
    cast(*sync_server())
    with prepared(journal) as capture:
        capture.run(Until(cycles=1000, idle=0.2))
        assert capture.stop()
    assert capture.note == "the server went idle after 3 decode cycles"
    assert not journal.finish().partial


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from journals import header, sync_server
from spantrace.capture import Capture, Until
from spantrace.journal import Journal
from actors import Actor
from test_capture import BOTH

directory, limit = Path(sys.argv[2]), int(sys.argv[3])
actors = [Actor(directory / "sockets", one, []) for one in sync_server(turns=40)]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    with Journal(directory / "a.spantrace", header()) as journal:
        with Capture(directory / "sockets", BOTH, journal, {}) as capture:
            capture.run(Until(cycles=40))
            capture.stop()
        journal.finish()
except Exception as error:
    print(type(error).__name__, error)
for actor in actors:
    actor.thread.join(10)
    assert not actor.thread.is_alive()
"""


NO_ROOM = ("File too large", "no space left")


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recording whose disk never was full."""
    directory = tmp_path_factory.mktemp("disk") / "unlimited"
    assert run_out_of_disk(directory, 1 << 30) == ""
    return directory


@pytest.mark.parametrize("missing", [1, 40, 200])
def test_a_full_disk_ends_the_recording_and_leaves_a_readable_journal(
    missing: int, unlimited: Path, tmp_path: Path
) -> None:
    full = load(unlimited / "a.spantrace")
    size = int((unlimited / "size").read_text())
    said = run_out_of_disk(tmp_path / "full", size - missing)
    part = tmp_path / "full" / "a.spantrace.part"
    assert said in [f"SpantraceError cannot write {part}: {why}; what was recorded is kept\n" for why in NO_ROOM]
    recording = load(part)
    assert recording.partial
    assert recording.cycles.step.tolist() == full.cycles.step.tolist()


def run_out_of_disk(directory: Path, limit: int) -> str:
    """What a recording says in a process that may write files of `limit` bytes; its journal's size is kept."""
    (directory / "sockets").mkdir(parents=True, mode=0o700)
    keep = f"\nPath({str(directory / 'size')!r}).write_text(str(journal._frame_sizes))"
    command = [sys.executable, "-c", FULL_DISK + keep, str(Path(__file__).parent), str(directory), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
