"""What the cycle takes over of a known delay is found in recordings that are made to have it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import make_recording

from analyzers.sensitivity import Path as Place
from analyzers.sensitivity import Sensitivity, sensitivity
from analyzers.statistics import FEWEST_RUNS
from spantrace.cli.main import run
from spantrace.errors import EXIT_NOT_COMPARABLE
from spantrace.experiment import Design
from spantrace.recording import Cycles, Recording
from spantrace.spans import Kind, Track
from spantrace.windows import WINDOWS

NS, CYCLES = 200_000, 40
Captured = pytest.CaptureFixture[str]


def made(
    slopes: Mapping[str, float | Sequence[float]], blocks: int = 8, drift: float = 0.0, noise_ns: float = 20_000.0
) -> Recording:
    """A recording with windows of 6 ms cycles: of a delay of a span they take over `slopes[span]`; `drift` a cycle.

    A span's slope may be one for each block.
    """
    random, size = np.random.default_rng(0), 2 * CYCLES * blocks * len(slopes)
    period = 6e6 + drift * np.arange(size) + random.normal(0, noise_ns, size)
    windows: list[dict[str, Any]] = []
    kind = np.zeros(size, dtype=np.int8)
    at = 0
    for block in range(blocks):
        for span, slope in slopes.items():
            for delayed in (block % 2 == 1, block % 2 == 0):
                kind[at : at + CYCLES] = Kind.DELAYED if delayed else Kind.STEADY
                period[at : at + CYCLES] += np.broadcast_to(slope, blocks)[block] * NS * delayed
                held = {"cycles": CYCLES + 1, "times": CYCLES, "ns": NS * CYCLES, "refused": 0}
                windows.append({"span": span, "track": "host", "ns": NS * delayed, "block": block, "at": at})
                windows[-1]["held"] = [held] if delayed else []
                at += CYCLES
    start = np.concatenate([[0], np.cumsum(period.astype(np.int64))])
    for window in windows:
        first = window.pop("at")
        window |= {"begin_ns": int(start[first]), "end_ns": int(start[first + CYCLES])}
    like = make_recording(cycles=size)
    columns = {
        **vars(like.cycles),
        "start": start[:-1],
        "end": start[1:] - 1000,
        "period": np.diff(start),
        "kind": kind,
    }
    return Recording({**like.header, WINDOWS: windows}, Cycles(**columns), like.spans)


@pytest.mark.parametrize(
    ("slope", "place"), [(1.0, Place.CRITICAL), (0.0, Place.HIDDEN), (0.5, Place.PARTLY), (1.3, Place.CRITICAL)]
)
def test_a_known_slope_is_found(slope: float, place: Place) -> None:
    (found,) = sensitivity(made({"schedule": slope}))
    assert found.slope is not None
    assert found.slope.low is not None
    assert found.slope.high is not None
    assert found.slope.low <= slope <= found.slope.high
    assert found.slope.high - found.slope.low < 0.2
    assert (found.delay_us, found.blocks, found.path) == (200.0, 8, place)


def test_a_drift_larger_than_the_delay_does_not_pass_for_an_effect() -> None:
    """Over the recording the cycle slows down by four delays; blocks of turning order see none of it."""
    drifting = made({"schedule": 1.0, "sample": 0.0}, drift=4 * NS / (4 * CYCLES * 8))
    assert [one.path for one in sensitivity(drifting)] == [Place.CRITICAL, Place.HIDDEN]


def test_noise_that_hides_the_effect_is_said_to() -> None:
    (found,) = sensitivity(made({"schedule": 1.0}, noise_ns=3e6))
    assert found.path is Place.UNCLEAR


@pytest.mark.parametrize(
    ("slopes", "place"),
    [
        ((0.9, 1.0, 1.6, 1.7), Place.UNCLEAR),
        ((0.86, 0.94, 0.84, 0.96), Place.CRITICAL),
        ((1.5, 2.5, 3.5, 2.5), Place.CRITICAL),
        ((0.6, 0.9, 0.7, 0.8), Place.UNCLEAR),
        ((0.1, -0.1, 0.05, -0.05), Place.HIDDEN),
        ((0.3, -0.1, 0.0, 0.2), Place.UNCLEAR),
        ((0.2, 0.3, 0.2, 0.3), Place.PARTLY),
    ],
)
def test_an_interval_that_also_holds_slopes_of_another_place_tells_none(
    slopes: tuple[float, ...], place: Place
) -> None:
    (found,) = sensitivity(made({"schedule": slopes}, blocks=len(slopes), noise_ns=0.0))
    assert found.slope is not None
    assert found.slope.value == pytest.approx(np.mean(slopes), abs=0.01)
    assert found.path is place, found.slope


def test_too_few_blocks_and_a_span_that_was_never_entered_have_no_slope() -> None:
    few = made({"schedule": 1.0}, blocks=3)
    assert sensitivity(few) == (Sensitivity("schedule", "host", 200.0, None, 3, Place.NOT_ENOUGH),)
    for window in few.header[WINDOWS]:
        window["held"] = [{"cycles": 40, "times": 0, "ns": 0, "refused": 2} for _ in window["held"]]
    assert sensitivity(few) == (Sensitivity("schedule", "host", 0.0, None, 3, Place.NOT_ENTERED, refused=6),)
    assert sensitivity(make_recording(cycles=60)) == ()


def test_a_block_of_which_one_window_is_missing_is_left_out() -> None:
    recording = made({"schedule": 1.0}, blocks=5)
    recording.header[WINDOWS].pop()
    assert [one.blocks for one in sensitivity(recording)] == [4]


def test_cycles_that_were_not_held_up_are_allowed_for() -> None:
    """In every second cycle the span is not entered: the cycle takes over all of what was injected."""
    recording = made({"schedule": 0.5})
    for window in recording.header[WINDOWS]:
        window["held"] = [{**held, "times": CYCLES // 2} for held in window["held"]]
    (found,) = sensitivity(recording)
    assert found.delay_us == 100.0
    assert found.slope is not None
    assert found.slope.value == pytest.approx(1.0, abs=0.1)


def test_the_command_and_the_report_say_it(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "a.spantrace"
    made({"schedule": 1.0, "sample": 0.0, "postprocess": 0.5}).save(path)
    assert run(["sensitivity", str(path)]) == 0
    said = capsys.readouterr().out
    assert "On the critical path: schedule.\nPartly hidden: postprocess.\nHidden: sample.\n" in said
    assert run(["sensitivity", str(path), "--format", "json"]) == 0
    told = {one["span"]: one for one in json.loads(capsys.readouterr().out)["sensitivity"]}
    assert told["schedule"]["slope"]["value"] == pytest.approx(1.0, abs=0.05)
    assert told["sample"]["path"] == "hidden"
    assert run(["report", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Of a delay on purpose the cycle takes over: schedule 1.00 (" in said
    assert "960 steady decode cycles" in said
    assert "960 delayed" in said


def test_a_recording_without_delays_is_told_apart(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "a.spantrace"
    make_recording(cycles=60).save(path)
    assert run(["sensitivity", str(path)]) == EXIT_NOT_COMPARABLE
    assert capsys.readouterr().err.startswith("spantrace: no span was delayed in a.spantrace; ")
    assert run(["report", str(path)]) == 0
    assert "on purpose" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"), [("--span", "schedule"), ("--blocks", "4"), ("--batch", "2"), ("--output", "b.spantrace")]
)
def test_a_recording_takes_no_options_of_how_to_record(
    option: str, value: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "a.spantrace"
    made({"schedule": 1.0}).save(path)
    assert run(["sensitivity", str(path), option, value]) == 2
    why = f"{option} says how to record, and {path} is recorded already; leave it out"
    assert capsys.readouterr() == ("", f"spantrace: {why}\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--span", "nonsense"], "no span is called 'nonsense'; choose from schedule, "),
        (["--span", "output.wait"], "output.wait is a wait and has no work to hold up; name what it waits for"),
        (["--span", "cycle"], "cycle is the whole of it; name a part, such as schedule, "),
        (["--delay", "5001"], "a delay must be longer than 0 and at most 5 ms"),
    ],
)
def test_what_cannot_be_delayed_is_refused_before_anything_starts(
    arguments: list[str], why: str, capsys: Captured
) -> None:
    assert run(["sensitivity", "built-in", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"spantrace: {why}")


@pytest.mark.parametrize("option", ["--delay", "--seconds", "--max-slowdown"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_bounds_are_finite(option: str, number: str, capsys: Captured) -> None:
    assert run(["sensitivity", "built-in", option, number]) == 2
    said = capsys.readouterr().err
    assert option in said
    assert "Traceback" not in said


def test_fewer_blocks_than_tell_anything_are_refused(capsys: Captured) -> None:
    assert run(["sensitivity", "built-in", "--blocks", str(FEWEST_RUNS - 1)]) == 2
    assert f"is not in the range {FEWEST_RUNS}<=" in capsys.readouterr().err


def test_without_names_every_part_of_the_cycle_that_works_is_tried() -> None:
    tried = Design().tried
    assert {track for _, track in tried} == {Track.HOST}
    assert {"schedule", "draft.propose", "output.update", "output.emit"} <= {span for span, _ in tried}
    assert not {"cycle", "output.wait", "draft.forward"} & {span for span, _ in tried}
