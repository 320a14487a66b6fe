"""`spantrace ab` on the built-in cycle: real campaigns, small, whole, killed, failing and resumed."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import optimized
from optimized.reference_cycle.cycle import Cycle
from spantrace.built_in.running import BuiltIn
from spantrace.campaign import built_in as target
from spantrace.campaign.store import CUT_OFF, LOG, Store, plan_of
from spantrace.cli.ab import duration
from spantrace.cli.main import run
from spantrace.errors import EXIT_BAD_INPUT, EXIT_GATE_FAILED, EXIT_NOT_COMPARABLE
from spantrace.loading import load
from spantrace.spans import Kind

pytestmark = pytest.mark.timed

CYCLES, WARMUP, REPEATS = 12, 2, 2
CYCLE = {"batch": 2, "draft-length": 3, "context": 64, "device": "cpu"}
LENGTH = {"cycles": CYCLES, "warmup": WARMUP, "repeats": REPEATS}
ARMS = ["stock", "stock again", "query-build"]
ORDER = [*ARMS, *reversed(ARMS)]
Captured = pytest.CaptureFixture[str]
Entry = dict[str, Any]


@pytest.fixture(autouse=True)
def _in_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = dict(vars(Cycle))
    yield
    assert optimized.applied() == ()
    assert dict(vars(Cycle)) == before


def flags(*more: str, optimize: str = "query-build") -> list[str]:
    small = [f"--{name}={value}" for name, value in {**LENGTH, **CYCLE}.items()]
    return ["ab", "built-in", f"--optimize={optimize}", *small, "-o", "campaign", *more]


def write_plan(*lines: str, name: str = "plan.toml") -> Path:
    head = ['optimize = ["query-build"]', *(f"{key} = {value}" for key, value in LENGTH.items()), *lines]
    cycle = [f"{key} = {json.dumps(value)}" for key, value in CYCLE.items()]
    path = Path(name)
    path.write_text("\n".join([*head, "[built-in]", *cycle]) + "\n")
    return path


def log(directory: str = "campaign") -> list[Entry]:
    return [json.loads(line) for line in (Path(directory) / LOG).read_text().splitlines()]


def of(event: str, directory: str = "campaign") -> list[Entry]:
    return [entry for entry in log(directory) if entry["event"] == event]


def result(capsys: Captured, *arguments: str, code: int = 0) -> Entry:
    """The campaign in the JSON that a command prints."""
    capsys.readouterr()
    assert run([*arguments, "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)["campaign"]  # type: ignore[no-any-return]


def test_every_window_is_recorded_in_turn_and_says_of_what(capsys: Captured) -> None:
    found = result(capsys, *flags())
    done = of("done")
    assert [entry["arm"] for entry in done] == ORDER
    files = sorted(Path("campaign").glob("*.spantrace"))
    assert [file.stem for file in files] == [f"{n:03d}-{arm.replace(' ', '-')}" for n, arm in enumerate(ORDER, start=1)]
    for entry, file in zip(done, files, strict=True):
        recording = load(file)
        about = {"plan": found["plan"], "arm": entry["arm"], "window": entry["window"], "code": entry["code"]}
        assert recording.header["campaign"] == about
        on = [one["id"] for one in recording.header["optimizations"] if one["hits"] > 0]
        assert on == (["query-build"] if entry["arm"] == "query-build" else [])
        assert (recording.cycles.kind == Kind.STEADY).sum() == CYCLES
        assert (recording.cycles.kind == Kind.WARMUP).sum() == WARMUP
        assert recording.cycles.kind[0] == Kind.PREFILL, "each window begins with new requests"
    codes = {entry["arm"]: entry["code"] for entry in done}
    assert codes["stock"] == codes["stock again"] != codes["query-build"]
    assert (found["windows"], len(found["done"]), found["failures"]) == (6, 6, [])
    assert found["plan"] == of("created")[0]["plan"]


def test_the_plan_and_the_estimated_time_come_before_the_first_window(capsys: Captured) -> None:
    assert run(flags("--dry-run")) == 0
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert re.fullmatch(r"plan \w{6}: 3 arms x 2, ABBA, windows of 2 \+ 12 cycles, 6 of 6 to measure", first)
    assert re.fullmatch(r"estimated time \d+ s; if it is killed, spantrace ab campaign goes on", second)
    assert not Path("campaign").exists()
    begun = time.monotonic()
    assert run(flags()) == 0
    took = time.monotonic() - begun
    estimated = float(re.findall(r"estimated time (\d+) s", capsys.readouterr().err)[0])
    assert took / 4 < estimated < took * 4


def test_a_killed_campaign_goes_on_where_it_stopped(capsys: Captured) -> None:
    plan = write_plan()
    program = [sys.executable, "-m", "spantrace.cli.main", "ab", str(plan), "-o", "campaign"]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(program, **quiet, env=os.environ | threads) as process:
        deadline = time.monotonic() + 60
        while not (Path("campaign") / LOG).exists() or len(of("done")) < 2 or log()[-1]["event"] != "started":
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    kept = {path: path.stat().st_mtime_ns for path in Path("campaign").glob("*.spantrace")}
    assert 2 <= len(kept) < 6
    cut = log()[-1]
    assert cut["event"] == "started"
    found = result(capsys, "ab", "campaign")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert [entry["arm"] for entry in found["done"]] == ORDER
    assert [(one["window"], one["why"]) for one in found["failures"]] == [(cut["window"], CUT_OFF)]
    assert list(Path("campaign").glob("*.part")) == []
    before = log()
    assert result(capsys, "ab", str(plan), "-o", "campaign") == found
    assert log() == before, "what is whole is only printed"


def fail_in(monkeypatch: pytest.MonkeyPatch, *windows: int) -> None:
    """Let the recording of these windows, counted from 1, break after some cycles."""
    record, count = BuiltIn.record, iter(range(1, 1000))

    def recording(self: BuiltIn, journal: Any, progress: Any) -> None:
        number = next(count)

        def advance(done: int) -> None:
            if number in windows and done == WARMUP + 1:
                raise RuntimeError(f"planted in window {number}")

        record(self, journal, advance)

    monkeypatch.setattr(BuiltIn, "record", recording)


def test_an_arm_that_fails_is_counted_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    with monkeypatch.context() as patch:
        fail_in(patch, 4)
        assert run(flags()) == EXIT_NOT_COMPARABLE
    out, err = capsys.readouterr()
    assert "window 4 of 6 (query-build) failed: RuntimeError: planted in window 4\n" in err
    assert err.splitlines()[-1] == "spantrace: 1 of 6 windows are missing; spantrace ab campaign measures them"
    assert re.search(r"failed +1 try", out)
    assert [entry["window"] for entry in of("done")] == [1, 2, 3, 5, 6]
    assert sorted(path.name for path in Path("campaign").glob("004*")) == []
    found = result(capsys, "ab", "campaign")
    assert len(found["done"]) == 6
    assert [(one["window"], one["arm"]) for one in found["failures"]] == [(4, "query-build")]


def test_three_failures_in_a_row_end_it_and_it_can_go_on(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    with monkeypatch.context() as patch:
        fail_in(patch, 2, 3, 4)
        assert run(flags()) == EXIT_NOT_COMPARABLE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        "spantrace: the campaign stopped because 3 windows in a row failed: RuntimeError: planted in window 4; "
        "1 of 6 windows are kept, spantrace ab campaign goes on"
    )
    assert len(result(capsys, "ab", "campaign")["failures"]) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_and_is_no_failure(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    record, count = BuiltIn.record, iter(range(1, 100))

    def recording(self: BuiltIn, journal: Any, progress: Any) -> None:
        third = next(count) == 3
        record(self, journal, lambda done: signal.raise_signal(number) if third and done == 5 else None)

    with monkeypatch.context() as patch:
        patch.setattr(BuiltIn, "record", recording)
        assert run(flags()) == 130
    assert capsys.readouterr().err.endswith("stopped; 2 of 6 windows are kept, spantrace ab campaign goes on\n")
    assert [entry["event"] for entry in log()[-2:]] == ["started", "stopped"]
    assert sorted(path.name[:3] for path in Path("campaign").glob("*-*")) == ["001", "002"]
    found = result(capsys, "ab", "campaign")
    assert (len(found["done"]), found["failures"]) == (6, [])


def test_other_code_does_not_mix_with_what_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    with monkeypatch.context() as patch:
        fail_in(patch, 6)
        assert run(flags()) == EXIT_NOT_COMPARABLE
    capsys.readouterr()
    monkeypatch.setattr(target, "own_code", lambda names: "0123456789")
    assert run(["ab", "campaign"]) == EXIT_BAD_INPUT
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"spantrace: the code has changed since window 1 of campaign was measured \(\w{6} then, 012345 now\); .*", said
    )


@pytest.mark.parametrize(
    ("name", "key", "now"), [("get_num_threads", "threads", lambda: 99), ("__version__", "torch", "9.9")]
)
def test_a_window_in_another_configuration_ends_it(
    name: str, key: str, now: Any, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    with monkeypatch.context() as patch:
        fail_in(patch, 2, 6)
        assert run(flags()) == EXIT_NOT_COMPARABLE
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(torch, name, now)
        assert run(["ab", "campaign"]) == EXIT_NOT_COMPARABLE
    assert re.fullmatch(
        rf"spantrace: the campaign stopped because {key} is 9\S+ now and was \S+ in window 1; make it that again, or "
        r"start another campaign \(-o\); 4 of 6 windows are kept, spantrace ab campaign goes on",
        capsys.readouterr().err.splitlines()[-1],
    )
    assert sorted(path.name for path in Path("campaign").glob("002*")) == []
    assert len(result(capsys, "ab", "campaign")["done"]) == 6


def test_a_window_of_another_one_does_not_mix_with_the_others(capsys: Captured) -> None:
    assert run(flags()) == 0
    first, last = (next(Path("campaign").glob(f"00{number}-*")) for number in "16")
    shutil.copy(first, last)
    capsys.readouterr()
    assert run(["ab", "campaign"]) == EXIT_BAD_INPUT
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"spantrace: {last} is not the recording of window 6 of this campaign; ")
    last.unlink()
    assert len(result(capsys, "ab", "campaign")["done"]) == 6


def test_a_directory_that_another_process_holds_is_left_alone_and_so_is_the_target(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    with monkeypatch.context() as patch:
        fail_in(patch, 6)
        assert run(flags()) == EXIT_NOT_COMPARABLE
    entered: list[Any] = []
    monkeypatch.setattr(target.BuiltInTarget, "__enter__", entered.append)
    capsys.readouterr()
    with Store(Path("campaign"), plan_of(Path("campaign"))):
        assert run(["ab", "campaign"]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err == "spantrace: another process runs the campaign in campaign; wait for it\n"
    assert entered == []


def test_a_full_disk_is_named_and_nothing_is_said_to_be_kept_that_is_not(capsys: Captured) -> None:
    assert run(flags()) == 0
    size = max(path.stat().st_size for path in Path("campaign").glob("*.spantrace"))
    (shutil.rmtree("campaign"), capsys.readouterr())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        assert run(flags()) == EXIT_NOT_COMPARABLE
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        r"3 windows in a row failed: cannot write campaign/003-\S+.spantrace.part: [\w ]+; 0 of 6 windows are kept",
        said,
    )
    assert {path.suffix for path in Path("campaign").iterdir()} == {".json", ".jsonl"}
    assert len(result(capsys, "ab", "campaign")["done"]) == 6


def test_all_three_have_an_arm_each_alone_left_out_and_together(capsys: Captured) -> None:
    found = result(capsys, *flags(optimize="all"))
    names = optimized.select("all")
    arms = ["stock", "stock again", *names, *(f"all but {name}" for name in names), "all"]
    assert [entry["arm"] for entry in found["done"]] == [*arms, *reversed(arms)]


def test_campaigns_combine_and_a_final_one_has_its_own_column(capsys: Captured) -> None:
    for number in "12":
        assert run([*flags(), "-o", f"day{number}"]) == 0
    capsys.readouterr()
    assert run(["ab", "day1", "--with", "day2"]) == EXIT_NOT_COMPARABLE, "2 rounds cannot tell whether the days agree"
    assert capsys.readouterr().out.startswith("2 campaigns\n")
    assert run(["ab", "day1", "--final", "day2", "--format", "json"]) == EXIT_NOT_COMPARABLE
    found = json.loads(capsys.readouterr().out)
    assert (found["campaigns"], found["final"]) == (["day1"], "day2")
    assert {one["arm"] for one in found["ranges"]} == {"stock again", "query-build"}


def test_a_latin_square_is_measured_in_its_order(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setitem(LENGTH, "repeats", 4)
    found = result(capsys, *flags("--order", "latin", "--no-aa", optimize="query-build,context-kv-cache"))
    rows = [[entry["arm"] for entry in found["done"]][start : start + 4] for start in range(0, 16, 4)]
    assert all(len(set(row)) == 4 for row in [*rows, *zip(*rows, strict=True)])


def test_without_aa_there_is_no_second_stock(capsys: Captured) -> None:
    found = result(capsys, *flags("--no-aa"))
    assert [entry["arm"] for entry in found["done"]] == ["stock", "query-build", "query-build", "stock"]


@pytest.mark.parametrize(
    ("gate", "outcome", "code"),
    [
        ("cycle < 1000 ms", "PASS", 0),
        ("cycle < 0.0001 ms", "FAIL", EXIT_GATE_FAILED),
    ],
)
def test_gates_are_written_down_first_and_decide_the_exit_code(
    gate: str, outcome: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    Path("gates.toml").write_text(f'gates = ["{gate}"]\n')
    monkeypatch.setitem(LENGTH, "repeats", 4)
    assert run(["ab", str(write_plan('gates = "gates.toml"')), "-o", "campaign"]) == code
    out = capsys.readouterr().out
    assert outcome in out
    assert re.search(r"gates \w{6} written \d\d:\d\d:\d\d \| first window \d\d:\d\d:\d\d", out)
    assert (Path("campaign") / "gates.toml").read_text() == Path("gates.toml").read_text()
    assert of("created")[0]["gates"]
    Path("gates.toml").write_text('gates = ["cycle < 2 ms"]\n')
    assert run(["ab", "plan.toml", "-o", "campaign"]) == EXIT_BAD_INPUT
    assert "were written down before its first window and are others now" in capsys.readouterr().err


def bad(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


BAD = [
    (["built-in", "--optimize", "fast"], "no optimization is called 'fast'; spantrace optimizations lists them all"),
    (
        ["built-in", "--optimize", "uniform-decode-metadata"],
        "uniform-decode-metadata ",
    ),
    (["built-in", "--repeats", "3"], "ABBA takes a multiple of 2 repeats, not 3"),
    (["built-in", "--gates", "none.toml"], "cannot read none.toml: No such file or directory"),
    (["nowhere.toml"], "cannot read nowhere.toml: No such file or directory"),
    (["key.toml"], "the plan has no key 'optimise'; choose from"),
    (["cycle.toml"], "[built-in] has no key 'width'; choose from drafter, geometry,"),
    (["value.toml"], "[built-in]: Invalid value for '--batch': 0 is not in the range"),
    (["gated.toml"], "cannot read nothing.toml: No such file or directory"),
    (["/dev/null"], "the plan has nothing to compare with stock; name optimizations or [[arm]]s"),
    (["built-in", "--optimize", "none"], "the plan has nothing to compare with stock; name optimizations or"),
    (["idle.toml"], "arm 'x' of the plan delays 'draft.forward', which this cycle does not have"),
    (["key.toml", "--cycles", "3"], "--cycles is what key.toml says itself; write it there"),
    (["."], ". holds no campaign (plan.json: No such file or directory)"),
]


@pytest.mark.parametrize(("arguments", "why"), BAD, ids=[why for _, why in BAD])
def test_bad_input_is_one_sentence_and_leaves_nothing(
    arguments: list[str], why: str, tmp_path: Path, capsys: Captured
) -> None:
    bad("key.toml", 'optimise = ["query-build"]\n')
    bad("cycle.toml", 'optimize = ["query-build"]\n[built-in]\nwidth = 3\n')
    bad("value.toml", 'optimize = ["query-build"]\n[built-in]\nbatch = 0\n')
    bad("gated.toml", 'optimize = ["query-build"]\ngates = "nothing.toml"\n')
    bad("idle.toml", '[[arm]]\nname = "x"\ndelay = {"draft.forward" = 50}\n[built-in]\ndrafter = "none"\n')
    before = sorted(tmp_path.iterdir())
    assert run(["ab", *arguments]) == EXIT_BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"spantrace: {why}")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "1 s"), (99, "99 s"), (130, "2 min"), (3600, "60 min"), (9000, "2.5 h")]
)
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    assert duration(seconds) == said
