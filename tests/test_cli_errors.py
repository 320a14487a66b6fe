"""Whatever one asks for wrongly gets one sentence on stderr and the exit code that scripts expect."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from actors import Actor, Cast
from journals import ENGINE, Played, sync_server, write_journal
from recordings import make_recording

from spantrace.cli import making
from spantrace.cli.group import COMMANDS
from spantrace.cli.main import EXIT_INTERRUPTED, run
from spantrace.errors import EXIT_BAD_INPUT, EXIT_NOT_COMPARABLE
from spantrace.loading import load
from spantrace.vllm_adapter import servers
from spantrace.vllm_adapter.servers import Member, Server

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two recordings, a text file, a folder and a cut file; and no server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(servers, "discover", lambda directory: [])
    make_recording(cycles=60).save(Path("a.spantrace"))
    make_recording(cycles=60, server={"model": "other"}).save(Path("b.spantrace"))
    Path("notes.txt").write_text("# Notes\n")
    Path("folder").mkdir()
    Path("cut.spantrace").write_bytes(Path("a.spantrace").read_bytes()[:3000])
    return tmp_path


BAD = [
    (["report"], "Missing argument 'FILE'; see spantrace report --help"),
    (["report", "none.spantrace"], "cannot read none.spantrace: No such file or directory"),
    (["report", "folder"], "cannot read folder: Is a directory"),
    (["report", "notes.txt"], "notes.txt is not a spantrace recording, or is damaged"),
    (["report", "cut.spantrace"], "cut.spantrace: the file is cut short"),
    (["report", "a.spantrace", "--kind", "slow"], "Invalid value for --kind: 'slow' is none of steady"),
    (["report", "a.spantrace", "--kind", "prefill"], "no cycle of this kind in the recording, it has 60 steady"),
    (["report", "a.spantrace", "--format", "xml"], "Invalid value for '--format': 'xml' is not one of"),
    (["report", "a.spantrace", "--baseline", "none"], "cannot read none: No such file or directory"),
    (["report", "a.spantrace", "b.spantrace"], "Got unexpected extra argument (b.spantrace)"),
    (["compare", "a.spantrace"], "Missing argument 'B'"),
    (["compare", "a.spantrace", "folder"], "folder holds no .spantrace file"),
    (["compare", "a.spantrace", "notes.txt"], "notes.txt is not a spantrace recording"),
    (["record"], "Missing argument 'SERVER'; see spantrace record --help"),
    (["record", "nonsense"], "'nonsense' is no :PORT, URL or pid"),
    (["record", ":1"], "nothing listens on port 1 here; start the server, or name its pid"),
    (["record", "http://192.0.2.1:8000"], "192.0.2.1 is another machine; run spantrace on it"),
    (["record", "999999999"], "there is no process 999999999; try spantrace ps"),
    (["record", ":1", "--cycles", "0"], "Invalid value for '--cycles': 0 is not in the range 1<=x<=1000000000"),
    (["record", ":1", "--warmup", "9" * 30], "9 is not in the range 0<=x<=1000000000"),
    (["record", ":1", "--detail-every", "9" * 30], "9 is not in the range 1<=x<=1000000000"),
    (["record", ":1", "--cycles", "many"], "Invalid value for '--cycles': 'many' is not a valid integer"),
    (["record", ":1", "--seconds", "-3"], "Invalid value for '--seconds'"),
    (["record", ":1", "-o", "a.spantrace"], "a.spantrace exists; choose another name or add --force"),
    (["record", ":1", "-o", "folder"], "Invalid value for '-o' / '--output': File 'folder' is a directory"),
    (["record", ":1", "--colour"], "No such option"),
    (["record", ":1", "-o", "-"], "- would be stdout, to which no file is written; name a file"),
    (["export", "a.spantrace", "--to", "csv", "-o", "-"], "- would be stdout, to which no file is written"),
    (["export", "a.spantrace", "--to", "csv", "-o", "none/a"], "cannot write none/a: there is no folder none; make it"),
    (["report", "a.spantrace", "--html", "none/a.html"], "cannot write none/a.html: there is no folder none; make it"),
    (["export", "a.spantrace", "--to", "csv", "-o", ""], "nothing is named; name what to write, or leave it out"),
    (["serve"], "name a model: spantrace serve -- MODEL [vllm serve arguments]"),
    (["ps", "extra"], "Got unexpected extra argument (extra)"),
    (["doctor", "--format"], "Option '--format' requires an argument"),
    (["recrod"], "No such command 'recrod'"),
    (["--verbose"], "No such option"),
]


def one_sentence(captured: Captured) -> str:
    """What stderr says, which is one line of ours; nothing is on stdout."""
    out, err = captured.readouterr()
    assert out == ""
    assert re.fullmatch(r"spantrace: [^\n]+\n", err), err
    return err


@pytest.mark.parametrize(
    ("arguments", "why"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_input_gets_one_sentence_and_code_2(arguments: list[str], why: str, capsys: Captured) -> None:
    assert run(arguments) == EXIT_BAD_INPUT
    assert why in one_sentence(capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        ["record", ":1", "-o"],
        ["run", "-o"],
        ["sensitivity", "built-in", "-o"],
        ["explain", ":1", "--span", "cycle", "-o"],
        ["ab", "built-in", "--dry-run", "-o"],
        ["ab", "built-in", "--dry-run", "--plot"],
        ["report", "a.spantrace", "--html"],
    ],
    ids=" ".join,
)
def test_a_file_to_write_has_a_name_that_can_be_printed(arguments: list[str], capsys: Captured) -> None:
    before = sorted(Path().iterdir())
    for name, why in (
        ("", "nothing is named; name what to write, or leave it out; see spantrace"),
        ("new\nline.html", r"'new\nline.html' has a character that cannot be printed; choose another name; see"),
        ("bell\a.html", r"'bell\x07.html' has a character that cannot be printed"),
    ):
        assert run([*arguments, name]) == EXIT_BAD_INPUT
        assert why in one_sentence(capsys)
    assert sorted(Path().iterdir()) == before


def test_what_cannot_be_compared_gets_code_3(capsys: Captured) -> None:
    assert run(["compare", "a.spantrace", "b.spantrace"]) == EXIT_NOT_COMPARABLE
    assert capsys.readouterr().err.startswith("spantrace: not comparable, the configurations differ")
    assert run(["report", "a.spantrace", "--baseline", "b.spantrace"]) == EXIT_NOT_COMPARABLE
    assert "the baseline is of another configuration" in one_sentence(capsys)


def test_an_unreadable_file_is_named(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise PermissionError(13, "Permission denied", "a.spantrace")

    monkeypatch.setattr(Path, "open", refuse)
    assert run(["report", "a.spantrace"]) == EXIT_BAD_INPUT
    assert one_sentence(capsys) == "spantrace: cannot read a.spantrace: Permission denied\n"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help(command: str, option: str, capsys: Captured) -> None:
    assert run([command, option]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: spantrace {command} ")
    assert err == ""


def test_help_lists_every_command_in_order(capsys: Captured) -> None:
    assert run(["--help"]) == 0
    found = re.findall(r"^  ([a-z]+)  +[A-Z]", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    assert found == list(COMMANDS)


def test_no_command_at_all_shows_the_help(capsys: Captured) -> None:
    assert run([]) == EXIT_BAD_INPUT
    assert "Commands:" in "".join(capsys.readouterr())


def test_without_servers_ps_and_doctor_say_so(capsys: Captured) -> None:
    assert run(["ps"]) == 0
    out = capsys.readouterr().out
    assert out == "no vLLM server of this user runs here (in a container: --dir, on a shared directory)\n"
    assert run(["doctor", "--dir", "folder/sockets"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "sockets no there is no directory folder/sockets yet" in said
    assert "servers no none of this user runs here" in said
    assert not Path("folder/sockets").exists()
    assert run(["doctor", "--dir", "notes.txt"]) == 0
    assert "notes.txt cannot be a directory of sockets" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("where", ["ps", "doctor"])
@pytest.mark.parametrize("form", ["json", "csv", "markdown"])
def test_ps_and_doctor_print_every_format(where: str, form: str, capsys: Captured) -> None:
    assert run([where, "--format", form]) == 0
    out, err = capsys.readouterr()
    assert out
    assert err == ""


def test_serve_without_vllm_says_where_it_looked(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(["serve", "--", "model"]) == EXIT_BAD_INPUT
    assert f"vLLM is not installed beside {sys.executable}" in one_sentence(capsys)


@pytest.mark.parametrize(
    ("chosen", "then"),
    [(None, None), ("", "spantrace"), ("a", "a,spantrace"), ("spantrace,a", "spantrace,a")],
)
def test_serve_becomes_vllm_serve(chosen: str | None, then: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(os, "execve", lambda *command: became.extend(command))
    monkeypatch.setenv("SPANTRACE", "off")
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("VLLM_PLUGINS", chosen)
    assert run(["serve", "--", "model", "--port", "8123", "--help"]) == 0
    program, command, environment = became
    assert command == [program, "-m", "vllm.entrypoints.cli.main", "serve", "model", "--port", "8123", "--help"]
    assert environment.get("VLLM_PLUGINS") == then
    assert "SPANTRACE" not in environment


def played_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments that record a server whose engine is played in `sockets`."""
    members = [Member(1, "api", "", None, True), Member(ENGINE, "engine", "", 1, True)]
    monkeypatch.setattr(servers, "discover", lambda directory: [Server(1, "vllm serve org/m", "0.33.0", members)])
    monkeypatch.setattr(making, "progress_bar", lambda total: contextlib.nullcontext(lambda cycles: None))
    return ["record", str(ENGINE), "--dir", str(place / "sockets"), "--warmup", "0"]


def test_an_existing_recording_or_journal_is_kept_unless_forced(
    place: Path,
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    arguments = [*played_server(place, monkeypatch), "--cycles", "3"]
    before = Path("a.spantrace").read_bytes()
    assert run([*arguments, "-o", "a.spantrace"]) == EXIT_BAD_INPUT
    assert "a.spantrace exists; choose another name or add --force" in one_sentence(capsys)
    write_journal(Path("c.spantrace"), *sync_server())
    assert run([*arguments, "-o", "c.spantrace"]) == EXIT_BAD_INPUT
    assert "c.spantrace.part exists" in one_sentence(capsys)
    assert Path("a.spantrace").read_bytes() == before
    cast(sync_server()[0])
    assert run([*arguments, "-o", "a.spantrace", "--force"]) == 0
    assert "3 cycles -> a.spantrace" in capsys.readouterr().err
    assert len(load(Path("a.spantrace")).cycles) == 3


def test_what_is_no_file_is_not_overwritten_even_when_forced(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    os.mkfifo("pipe")
    for output in ("pipe", "/dev/null"):
        assert run([*played_server(place, monkeypatch), "-o", output, "--force"]) == EXIT_BAD_INPUT
        assert one_sentence(capsys).startswith(f"spantrace: {output} is no file that could be overwritten")
    assert Path("pipe").is_fifo()
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("forced", [False, True])
def test_a_file_that_appears_while_it_is_recorded_is_replaced_only_when_forced(
    forced: bool, place: Path, cast: Cast, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    cast(sync_server()[0])
    arguments = [*played_server(place, monkeypatch), "--cycles", "3", *(["--force"] if forced else [])]
    appear = lambda cycles: Path("new.spantrace").write_text("precious")  # noqa: E731
    monkeypatch.setattr(making, "progress_bar", lambda total: contextlib.nullcontext(appear))
    assert run([*arguments, "-o", "new.spantrace"]) == (0 if forced else EXIT_BAD_INPUT)
    if forced:
        assert len(load(Path("new.spantrace")).cycles) == 3
        assert [path.name for path in place.glob("new*")] == ["new.spantrace"]
        return
    assert one_sentence(capsys) == (
        "spantrace: cannot write new.spantrace: a file has appeared there, which is left alone; "
        "new.spantrace.part holds what was recorded, and can be renamed, or reported on as it is\n"
    )
    assert Path("new.spantrace").read_text() == "precious"
    assert len(load(Path("new.spantrace.part").rename("other.spantrace")).cycles) == 3
    assert [path.name for path in place.glob("*new*")] == ["new.spantrace"]


def test_a_file_that_appears_while_it_is_sampled_is_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def appears(*_: object) -> Any:
        Path("new.spantrace").write_text("precious")
        return make_recording(cycles=60)

    monkeypatch.setattr("spantrace.vllm_adapter.stack_samples.sample_server", appears)
    arguments = [*played_server(place, monkeypatch), "--sample", "-o", "new.spantrace"]
    monkeypatch.setattr(making, "progress_bar", lambda *_: contextlib.nullcontext())
    assert run([word for word in arguments if word not in ("--warmup", "0")]) == EXIT_BAD_INPUT
    assert "; new.spantrace.part holds what was recorded" in one_sentence(capsys)
    assert Path("new.spantrace").read_text() == "precious"
    assert len(load(Path("new.spantrace.part")).cycles) == 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_a_recording(
    number: signal.Signals, place: Path, cast: Cast, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    cast(sync_server()[0])
    arguments = played_server(place, monkeypatch)

    def interrupt(cycles: int) -> None:
        if cycles > 2:
            signal.raise_signal(number)

    monkeypatch.setattr(making, "progress_bar", lambda total: contextlib.nullcontext(interrupt))
    assert run([*arguments, "-o", "new.spantrace"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("stopped; what was recorded is kept\n")
    assert "cycles -> new.spantrace" in said
    assert not list(place.glob("*.part"))


def test_ctrl_c_before_anything_was_recorded_leaves_no_file(
    place: Path, cast: Cast, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    cast(Played("engine", ENGINE))
    arguments = played_server(place, monkeypatch)
    stop = lambda cycles: signal.raise_signal(signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr(making, "progress_bar", lambda total: contextlib.nullcontext(stop))
    assert run([*arguments, "-o", "new.spantrace"]) == EXIT_INTERRUPTED
    assert one_sentence(capsys) == "spantrace: stopped; nothing was recorded\n"
    assert not list(place.glob("new*"))


@pytest.mark.parametrize("command", ["run", "verify", "bench", "optimizations", "report"])
@pytest.mark.parametrize("package", ["optimized", "analyzers"])
def test_a_stranger_under_our_name_is_refused_in_one_sentence(command: str, package: str, place: Path) -> None:
    stranger = place / "stranger"
    (stranger / package).mkdir(parents=True)
    (stranger / package / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "spantrace.cli.main", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(stranger)},
    )
    assert (done.returncode, done.stdout) == (EXIT_BAD_INPUT, "")
    assert re.fullmatch(rf"spantrace: the package '{package}' found is {stranger / package}, not .+\n", done.stderr)


def test_an_idle_server_leaves_no_file(
    place: Path,
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    cast(Played("engine", ENGINE))
    arguments = played_server(place, monkeypatch)
    assert run([*arguments, "--idle-timeout", "0.2", "-o", "idle.spantrace"]) == EXIT_NOT_COMPARABLE
    assert "no cycle in 0.2 s: the server is idle" in one_sentence(capsys)
    assert not list(place.glob("idle*"))


def test_a_server_that_breaks_off_leaves_a_partial_recording(
    place: Path,
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    def die(connection: Any, actor: Actor) -> None:
        for frame in actor.played.frames()[:-1]:
            connection.send(frame)
        raise EOFError

    cast(sync_server()[0], engine=die)
    assert run([*played_server(place, monkeypatch), "-o", "cut.spantrace", "--force"]) == 0
    said = "engine process 10 broke off while it was recorded: the peer closed the connection; the recording is partial"
    assert said in capsys.readouterr().err
    assert load(Path("cut.spantrace")).partial


def test_an_output_directory_that_is_not_there(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    assert run([*played_server(place, monkeypatch), "-o", "none/a.spantrace"]) == EXIT_BAD_INPUT
    assert "cannot write none/a.spantrace: there is no folder none; make it" in one_sentence(capsys)


def test_a_reader_that_leaves_is_no_error(place: Path) -> None:
    script = f"{sys.executable} -m spantrace.cli.main report a.spantrace | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False, cwd=place)
    assert done.stdout in ("0\n", "141\n")
    assert done.stderr == ""
