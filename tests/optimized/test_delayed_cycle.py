"""Known answers on a real cycle: what it waits for takes over a delay, what is hidden or on another thread does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quiet import Blurred, judged  # noqa: E402
from small_cycles import SMALL  # noqa: E402

from analyzers.sensitivity import Sensitivity, sensitivity  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.built_in.delayed import experiment  # noqa: E402
from spantrace.built_in.running import Asked, BuiltIn  # noqa: E402
from spantrace.cli import making  # noqa: E402
from spantrace.cli.main import EXIT_INTERRUPTED, run  # noqa: E402
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError  # noqa: E402
from spantrace.experiment import Design  # noqa: E402
from spantrace.journal import Journal  # noqa: E402
from spantrace.recording import Recording  # noqa: E402
from spantrace.spans import Kind, Track  # noqa: E402
from spantrace.windows import WINDOWS  # noqa: E402

pytestmark = pytest.mark.timed

NS, CYCLES = 200_000, 25
TOLERANCE = 0.15
"""What a neighbour on the same core makes of a cycle that is a fifth longer, beside the interval of the blocks."""
WIDEST = 0.6
"""An interval that is wider cannot tell 0 from 1."""
BUSY_NS = 3_000_000
LONG: dict[str, Any] = {"ns": 1_000_000, "blocks": 8, "slowdown": 0.5}
"""Delays beside which it is little that a thread wakes up late."""
TINY = replace(SMALL, layers=1, taps=(0,), dflash=replace(SMALL.dflash, layers=1))
FEW = ["--drafter", "none", "--layers", "1", "--hidden", "32", "--vocab", "64", "--batch", "1", "--context", "64"]
"""Options of the smallest cycle."""
Captured = pytest.CaptureFixture[str]


def work(**changes: Any) -> BuiltIn:
    """A cycle that is short beside the time slice of a machine that has other work, so that most are undisturbed."""
    settings = Settings(TINY, **{"drafter": "none", "batch": 1, "draft_length": 1, "context": 256, **changes})
    return BuiltIn(Asked(settings, rates=(0.75,), warmup=CYCLES))


def record(built: BuiltIn, path: Path, *spans: str, **changes: Any) -> Recording:
    """The recording of an experiment that delays these spans."""
    aims = tuple((span, Track.HOST) for span in spans)
    design = Design(aims, **{"ns": NS, "cycles": CYCLES, "blocks": 20, **changes})
    built.prepare(lambda tokens: None)
    with Journal(path, making.new_header("", {"warmup": CYCLES}), force=True) as journal:
        assert experiment(built, design, journal, lambda blocks: None) == ""
        return journal.finish()


def slopes(built: Callable[[], BuiltIn], path: Path, expected: dict[str, float], **changes: Any) -> None:
    """Each slope is as expected within its interval, which tells 0 from 1; measured again where it does not."""

    def measure() -> None:
        found = {one.span: one for one in sensitivity(record(built(), path, *expected, **changes))}
        assert all(_is(found[span], slope) for span, slope in expected.items()), f"{expected} expected, found {found}"

    judged(measure)


def _is(found: Sensitivity, expected: float) -> bool:
    assert found.delay_us > 0.9 * NS / 1e3
    slope = found.slope
    assert slope is not None
    assert slope.low is not None
    assert slope.high is not None
    if slope.high - slope.low > WIDEST:
        raise Blurred(f"the slope of {found.span} is {slope.low:.2f} to {slope.high:.2f}")
    return slope.low - TOLERANCE <= expected <= slope.high + TOLERANCE


def test_the_cycle_takes_over_all_of_a_delay_in_a_span_of_its_only_thread(tmp_path: Path) -> None:
    slopes(work, tmp_path / "a.spantrace", {"schedule": 1.0, "sample": 1.0, "output.update": 1.0})


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is busy from its launch in postprocess on; the host goes on, and waits for it at the end."""
    launch, wait = Cycle.postprocess, Cycle.wait

    def launched(self: Cycle, *arguments: Any) -> None:
        launch(self, *arguments)
        self.ready = time.perf_counter_ns() + BUSY_NS  # type: ignore[attr-defined]

    def waited(self: Cycle) -> list[list[int]]:
        time.sleep(max(0, self.ready - time.perf_counter_ns()) / 1e9)  # type: ignore[attr-defined]
        return wait(self)

    monkeypatch.setattr(Cycle, "postprocess", launched)
    monkeypatch.setattr(Cycle, "wait", waited)


@pytest.mark.usefixtures("device")
def test_what_a_wait_hides_costs_nothing_and_what_comes_before_the_launch_costs_all(tmp_path: Path) -> None:
    drafting = {"drafter": "dflash", "draft_length": 2}
    slopes(lambda: work(**drafting), tmp_path / "a.spantrace", {"sample": 1.0, "draft.propose": 0.0}, **LONG)


@pytest.mark.usefixtures("device")
def test_a_span_of_another_thread_costs_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:

        def emitting() -> BuiltIn:
            built = work()
            cycle = built.cycle
            cycle.emit = lambda progress: pool.submit(Cycle.emit, cycle, progress)  # type: ignore[method-assign]
            return built

        slopes(emitting, tmp_path / "a.spantrace", {"output.emit": 0.0, "output.update": 1.0}, **LONG)


def test_the_span_itself_gets_longer_by_the_delay_and_no_other_by_as_much(tmp_path: Path) -> None:
    recording = record(work(), tmp_path / "a.spantrace", "sample", blocks=8)
    delayed = recording.cycles.kind == Kind.DELAYED
    steady = recording.cycles.kind == Kind.STEADY
    assert delayed.sum() >= 8 * CYCLES
    assert steady.sum() >= 8 * CYCLES
    assert {window["ns"] for window in recording.header[WINDOWS]} == {0, NS}
    for span in ("schedule", "target.input_prep", "target.metadata", "sample", "postprocess", "output.update"):
        took = recording.durations(span)
        grew = np.median(took[delayed]) - np.median(took[steady])
        assert (NS < grew < 1.2 * NS) if span == "sample" else grew < NS / 4, span


def test_no_delay_is_left_behind_by_an_experiment_that_breaks_off(tmp_path: Path) -> None:
    built = work()
    before = [dict(vars(owner)) for owner in (Cycle, type(built.cycle.scheduler))]
    built.prepare(lambda tokens: None)
    advance, left = built.advance, 3 * CYCLES

    def broken(session: Any) -> bool:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return advance(session)

    built.advance = broken  # type: ignore[method-assign]
    design = Design((("schedule", Track.HOST),), NS, CYCLES)
    with Journal(tmp_path / "a.spantrace", making.new_header("", {"warmup": CYCLES})) as journal:
        assert experiment(built, design, journal, lambda blocks: None) == "interrupted"
        recording = journal.finish()
    assert WINDOWS not in recording.header, "no block was whole"
    assert [dict(vars(owner)) for owner in (Cycle, type(built.cycle.scheduler))] == before


@pytest.mark.parametrize(
    ("span", "changes", "why"),
    [
        (
            "schedule",
            {"ns": 5_000_000},
            "5000 us in every other window would slow a cycle of .*, more than 20%; choose",
        ),
        ("draft.propose", {}, "no function of draft.propose runs here that could be held up"),
    ],
)
def test_what_cannot_be_delayed_here_is_refused(tmp_path: Path, span: str, changes: dict[str, Any], why: str) -> None:
    design = Design(((span, Track.HOST),), **{"ns": NS, "cycles": CYCLES, **changes})
    built = work()
    built.prepare(lambda tokens: None)
    with (
        Journal(tmp_path / "a.spantrace", making.new_header("", {"warmup": CYCLES})) as journal,
        pytest.raises(SpantraceError, match=why),
    ):
        experiment(built, design, journal, lambda blocks: None)


def test_it_ends_in_time_with_whole_blocks(tmp_path: Path) -> None:
    built = work()
    built.prepare(lambda tokens: None)
    design = Design((("schedule", Track.HOST),), NS, CYCLES, blocks=1000, seconds=0.5)
    with Journal(tmp_path / "a.spantrace", making.new_header("", {"warmup": CYCLES})) as journal:
        said = experiment(built, design, journal, lambda blocks: None)
        recording = journal.finish()
    assert said.startswith("stopped after 0.5 s, in block ")
    windows = recording.header[WINDOWS]
    assert 0 < len(windows) < 2000
    assert len(windows) % 2 == 0


def test_the_command_records_and_says_what_it_found(tmp_path: Path, monkeypatch: Any, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--cycles", "20", "--blocks", "4", "--max-slowdown", "0.5", "--device", "cpu"]
    assert run(["sensitivity", "built-in", *FEW, *quick, "--span", "schedule", "-o", "a.spantrace"]) == 0
    said = capsys.readouterr()
    assert "tiny, no speculation | built-in cycle" in said.out
    assert "d(cycle)/d(delay)" in said.out
    assert " -> a.spantrace (" in said.err
    assert run(["sensitivity", "built-in", *FEW, *quick, "--span", "draft.propose"]) == EXIT_NOT_COMPARABLE
    assert capsys.readouterr().err == "spantrace: no function of draft.propose runs here that could be held up\n"
    assert run(["sensitivity", "built-in", *FEW, *quick, "--gpu-span", "target.forward"]) == EXIT_NOT_COMPARABLE
    assert "is timed on a GPU runs here; only what launches work on one" in capsys.readouterr().err
    assert run(["sensitivity", "built-in", *FEW, *quick, "-o", "a.spantrace"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.spantrace"]


def test_without_a_whole_block_there_is_no_file(tmp_path: Path, monkeypatch: Any, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    quick = [*FEW, "--max-slowdown", "0.5", "--device", "cpu", "--span", "schedule"]
    for output in ([], ["-o", "a.spantrace"]):
        assert run(["sensitivity", "built-in", *quick, "--seconds", "1e-6", *output]) == EXIT_NOT_COMPARABLE
        said = capsys.readouterr()
        assert (said.out, said.err) == (
            "",
            "spantrace: no block was finished, so that nothing is kept: stopped after 1e-06 s, in block 1 of 8; "
            "allow more --seconds\n",
        )
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_before_the_first_block_leaves_no_file(tmp_path: Path, monkeypatch: Any, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spantrace.experiment._check_slowdown", interrupted)
    assert run(["sensitivity", "built-in", *FEW, "--device", "cpu", "--span", "schedule"]) == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "spantrace: stopped; nothing was recorded\n"
    assert list(tmp_path.iterdir()) == []
