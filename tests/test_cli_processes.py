"""What only a process of its own shows: Ctrl-C from its first moment on, and streams that are closed or full."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from recordings import make_recording

from spantrace.cli.main import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from spantrace.errors import EXIT_BAD_INPUT
from spantrace.loading import load

IMPORTING = """
import signal, sys
module = sys.argv.pop(1)
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from spantrace.cli.main import main
main()
"""
"""Runs a command line to which Ctrl-C comes while it imports a module, its first argument."""
LOST = """
import signal, sys
from spantrace.cli import main
def lost(number, frame):
    raise KeyboardInterrupt
def run():
    signal.raise_signal(signal.SIGINT)
    return 0
main.run = run
main.main()
"""
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
SHORT = "run --batch 2 --context 256 --cycles 5 --device cpu -o new.spantrace"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recording."""
    monkeypatch.chdir(tmp_path)
    make_recording(cycles=60).save(Path("a.spantrace"))
    return tmp_path


def shell(words: str) -> subprocess.CompletedProcess[str]:
    """Run `spantrace` with these words of a shell."""
    line = f"{sys.executable} -m spantrace.cli.main {words}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("spantrace.cli.streams", ["report", "a.spantrace"], "stopped"),
        ("click", ["report", "a.spantrace"], "stopped"),
        ("click", ["record", ":1"], "stopped; nothing was recorded"),
        ("spantrace.cli.record", ["record", ":1"], "stopped; nothing was recorded"),
        ("numpy", ["report", "a.spantrace"], "stopped"),
        ("numpy", ["record", ":1"], "stopped; nothing was recorded"),
    ],
)
def test_ctrl_c_within_an_import_is_one_sentence(module: str, words: list[str], said: str) -> None:
    command = [sys.executable, "-c", IMPORTING, module, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "", f"spantrace: {said}\n")


def test_ctrl_c_outside_of_what_catches_it_is_one_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "", "spantrace: stopped\n")


@needs_torch
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.6])
def test_ctrl_c_right_after_the_start_is_one_sentence(delay: float, place: Path) -> None:
    program = "print(flush=True); from spantrace.cli.main import main; main()"
    command = [sys.executable, "-c", program, *SHORT.split(), "--context", "65536"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(max(delay, 0.01))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (EXIT_INTERRUPTED, "spantrace: stopped; nothing was recorded\n")
    assert not list(place.glob("*new*"))


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    done = subprocess.run(
        ["bash", "-c", f"trap '' INT; exec {sys.executable} -c '{IMPORTING}' click report a.spantrace"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@needs_torch
@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full", "2>&- >&- <&-"])
def test_a_recording_does_without_stderr(stream: str) -> None:
    assert shell(f"{SHORT} {stream}").returncode == 0
    recording = load(Path("new.spantrace"))
    assert not recording.partial
    assert len(recording.cycles) >= 5


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full", "2>&- <&-"])
def test_no_exit_code_hangs_on_stderr(stream: str) -> None:
    assert shell(f"report none {stream}").returncode == EXIT_BAD_INPUT
    assert shell(f"export a.spantrace --to csv -o a.csv {stream}").returncode == 0
    assert Path("a.csv").read_text().startswith("cycle,")
    done = shell(f"report a.spantrace --format json {stream}")
    assert (done.returncode, done.stdout[:1]) == (0, "{")


@pytest.mark.parametrize(("stream", "why"), [(">&-", "it is closed"), ("> /dev/full", "No space left on device")])
@pytest.mark.parametrize("words", ["report a.spantrace", "report a.spantrace --format json", "ps", "--help"])
def test_a_stdout_that_takes_nothing_is_named(words: str, stream: str, why: str) -> None:
    done = shell(f"{words} {stream}")
    *doubts, said = done.stderr.splitlines()
    assert said == f"spantrace: cannot write to stdout: {why}; send it elsewhere"
    assert all(line.startswith("spantrace: doubt: ") for line in doubts)
    assert done.returncode == EXIT_BAD_INPUT


def test_a_stdout_whose_reader_has_left_is_quiet() -> None:
    done = shell("report a.spantrace | true; exit ${PIPESTATUS[0]}")
    assert (done.returncode in (0, EXIT_BROKEN_PIPE), done.stderr) == (True, "")


@needs_torch
@pytest.mark.parametrize("forced", [False, True])
def test_a_file_that_appears_while_the_cycle_runs_is_replaced_only_when_forced(forced: bool) -> None:
    part, path = Path("new.spantrace.part"), Path("new.spantrace")
    command = [sys.executable, "-m", "spantrace.cli.main", *SHORT.split(), "--cycles", "40"]
    command += ["--force"] if forced else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not part.exists() and process.poll() is None:
            time.sleep(0.01)
        path.write_text("precious")
        _, err = process.communicate(timeout=120)
    assert process.returncode == (0 if forced else EXIT_BAD_INPUT), err
    assert part.exists() is not forced
    assert len(load(path if forced else part).cycles) >= 40
    if not forced:
        assert path.read_text() == "precious"
        assert re.fullmatch("spantrace: cannot write new.spantrace: .*; new.spantrace.part holds what .*\n", err)
