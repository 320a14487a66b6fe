"""Known answers of campaigns on the built-in cycle: equal code, a drift, an idle switch, two that overlap, a delay."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from campaigns import resample_less
from quiet import Blurred, judged
from small_cycles import SMALL

import optimized
from analyzers.attribution import STOCK, STOCK_AGAIN, Arm, attribute
from analyzers.per_cycle import periods
from optimized.reference_cycle.cycle import Cycle
from optimized.reference_cycle.settings import Settings
from spantrace.built_in.running import Asked, BuiltIn
from spantrace.campaign.order import ABBA, turns
from spantrace.cli import making
from spantrace.cli.main import run
from spantrace.journal import Journal
from spantrace.loading import load
from spantrace.recording import Recording
from spantrace.spans import Kind

pytestmark = pytest.mark.timed

ROUNDS, CYCLES, CAMPAIGNS = 8, 12, 100
ARMS = (STOCK, STOCK_AGAIN, "same")
SIZE = len(ARMS) * ROUNDS
"""Windows of a campaign."""
HELD, INSIDE, DELAY_US = "schedule", "draft.input_prep", 200
LONG_US, MOST_OF_IT = 2000, 0.9
"""A delay beside which the cycle's own unrest is small, and how much of a cycle it may be: half of them are delayed."""
NOTHING = 0.02
"""Milliseconds, a tenth of the delay: by less the spans behind it are slower for the caches that it leaves cold."""
ENOUGH = 0.1
"""Of the delay: an interval of the cycle that reaches no further can be held against a prediction to 15%."""
WITHIN = 0.1
"""Of the delay: how near it is to be found in its own span, by an interval that reaches no further."""
PLANTED_MS = 5
IDLE = "context-kv-cache"
TINY = replace(SMALL, layers=1, taps=(0,))
CYCLE = {"batch": 1, "draft-length": 3, "context": 64, "layers": 1, "hidden": 32, "vocab": 64, "device": "cpu"}
Captured = pytest.CaptureFixture[str]


def record(path: Path, cycles: int) -> Recording:
    """So many cycles of a small target that nobody drafts for, which take some hundred microseconds each."""
    settings = Settings(TINY, drafter="none", batch=1, draft_length=1, context=256)
    work = BuiltIn(Asked(settings, cycles=cycles, warmup=20))
    work.prepare(lambda tokens: None)
    with Journal(path, making.new_header("", {"warmup": 20})) as journal:
        work.record(journal, lambda done: None)
        return journal.finish()


def windows(recording: Recording) -> list[Recording]:
    """Its steady cycles in windows, one after another."""
    steady = np.flatnonzero(recording.cycles.kind == Kind.STEADY)
    parts = [steady[at : at + CYCLES] for at in range(0, len(steady) - CYCLES + 1, CYCLES)]
    every = np.arange(len(recording.cycles))
    return [recording.only((every >= part[0]) & (every <= part[-1])) for part in parts]


def campaign(parts: Sequence[Recording], *, in_turns: bool) -> Arm:
    """An arm of windows that are dealt to it and to two stocks, in ABBA or one arm after the other."""
    order = turns(len(ARMS), ROUNDS, ABBA)
    runs: dict[str, list[Recording]] = {name: [] for name in ARMS}
    for part, arm in zip(parts, order if in_turns else sorted(order), strict=True):
        runs[ARMS[arm]].append(part)
    found = attribute(runs, {}, {}).arm(ARMS[-1])
    assert found is not None
    return found


def declared(arm: Arm) -> set[str]:
    """What an arm says has changed, at 5%."""
    return {str(one.quantity) for one in arm.effects if one.adjusted is not None and one.adjusted < 0.05}


@pytest.mark.timeout(300)
def test_of_100_campaigns_of_equal_code_at_most_12_declare_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resample_less(monkeypatch)
    parts = windows(record(tmp_path / "a.spantrace", CAMPAIGNS * SIZE * CYCLES))
    assert len(parts) >= CAMPAIGNS * SIZE * 0.95
    every = [parts[at : at + SIZE] for at in range(0, len(parts) - SIZE + 1, SIZE)]
    found = [declared(campaign(one, in_turns=True)) for one in every]
    assert sum(map(bool, found)) <= 12, "5 are expected where the test is exact"


def test_under_a_drift_equal_arms_in_turns_show_nothing_and_one_after_the_other_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postprocess, begun = Cycle.postprocess, 0

    def slower_and_slower(self: Cycle, *arguments: Any) -> Any:
        nonlocal begun
        begun += 1
        until = time.perf_counter_ns() + 20_000 * begun
        while time.perf_counter_ns() < until:
            pass
        return postprocess(self, *arguments)

    monkeypatch.setattr(Cycle, "postprocess", slower_and_slower)

    def measure() -> None:
        nonlocal begun
        begun = 0
        (tmp_path / "a.spantrace").unlink(missing_ok=True)
        parts = windows(record(tmp_path / "a.spantrace", (SIZE + 1) * CYCLES))[:SIZE]
        assert not declared(campaign(parts, in_turns=True))
        assert "cycle.host" in declared(campaign(parts, in_turns=False))

    judged(measure)


def measured(capsys: Captured, *lines: str, **changes: Any) -> dict[str, Any]:
    """What `spantrace ab` says of a plan on a small built-in cycle, as JSON, and as text under "text"."""
    cycle = [f"{key} = {json.dumps(value)}" for key, value in {**CYCLE, **changes}.items()]
    for path in Path("campaign").glob("*"):
        path.unlink()
    Path("plan.toml").write_text("\n".join([*lines, "[built-in]", *cycle]) + "\n")
    assert run(["ab", "plan.toml", "-o", "campaign"]) == 0
    text = capsys.readouterr().out
    assert run(["ab", "campaign", "--format", "json"]) == 0
    return {**json.loads(capsys.readouterr().out), "text": text}


@pytest.fixture
def _in_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_in_its_own_place")
def test_a_switch_that_never_fires_is_reported_as_such(capsys: Captured) -> None:
    """DSpark keeps its context by itself, so that there is nothing for the switch to do."""
    assert "dspark" not in optimized.discover()[IDLE].drafters
    short = ["repeats = 8", "cycles = 12", "warmup = 2", f'optimize = ["{IDLE}"]']
    found = measured(capsys, *short, drafter="dspark")
    (idle,) = (arm for arm in found["arms"] if arm["name"] == IDLE)
    assert (idle["silent"], idle["conversion"]["verdict"]) == ([IDLE], "never fired")
    assert "never fired" in found["text"]


@pytest.mark.usefixtures("_in_its_own_place")
def test_two_switches_that_save_the_same_work_show_their_interaction(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Milliseconds of work that either of two switches makes superfluous, planted beside what they really do."""
    postprocess = Cycle.postprocess

    def with_work(self: Cycle, *arguments: Any) -> Any:
        until = time.perf_counter_ns() + (0 if optimized.applied() else 1_000_000 * PLANTED_MS)
        while time.perf_counter_ns() < until:
            pass
        return postprocess(self, *arguments)

    monkeypatch.setattr(Cycle, "postprocess", with_work)
    short = ["repeats = 8", "cycles = 25", "warmup = 3", 'optimize = ["query-build", "context-kv-cache"]']

    def measure() -> None:
        (joint,) = measured(capsys, *short)["interactions"]
        assert joint["interaction"]["high"] < 0
        low, high = (joint["interaction"][end] + sign * PLANTED_MS / 3 for end, sign in (("low", -1), ("high", 1)))
        assert low < -PLANTED_MS < high

    judged(measure)


@pytest.mark.usefixtures("_in_its_own_place")
def test_the_cycle_moves_as_sensitivity_predicts(capsys: Captured) -> None:
    """Both measure the same cycle, in which a span of its only thread is held up: one by slopes, one by arms."""
    options = [f"--{key}={value}" for key, value in CYCLE.items()]
    assert run(["run", *options, "--cycles=100", "-o", "short.spantrace"]) == 0
    us = min(LONG_US, int(MOST_OF_IT * np.nanmedian(periods(load(Path("short.spantrace")))) / 1e3))
    asked = [f"--span={HELD}", f"--delay={us}", "--cycles=60", "--blocks=20", "--max-slowdown=0.5"]
    capsys.readouterr()

    def measure() -> None:
        assert run(["sensitivity", "built-in", *options, *asked, "--format=json", "--force"]) == 0
        (slope,) = json.loads(capsys.readouterr().out)["sensitivity"]
        held = _held(capsys, HELD, us, cycles=80)
        assert _change(held, HELD)["value"] == pytest.approx(us / 1e3, rel=0.1)
        moved, predicted = _change(held, "cycle"), slope["slope"]
        width = max((predicted["high"] - predicted["low"]) / 2, (moved["high"] - moved["low"]) / (2e-3 * us))
        if width > ENOUGH:
            raise Blurred(f"the cycle is known to {width:.0%} of the delay")
        assert moved["value"] == pytest.approx(predicted["value"] * us / 1e3, rel=0.15)

    judged(measure)


@pytest.mark.usefixtures("_in_its_own_place")
@pytest.mark.parametrize(("span", "parents"), [("output.update", set()), (INSIDE, {"draft.propose"})])
def test_200_us_in_one_span_are_found_there_and_in_what_encloses_it_and_nowhere_else(
    span: str, parents: set[str], capsys: Captured
) -> None:
    def measure() -> None:
        held = _held(capsys, span, DELAY_US)
        found = _change(held, span)
        if (known := (found["high"] - found["low"]) / (2e-3 * DELAY_US)) > WITHIN:
            raise Blurred(f"the span is known to {known:.0%} of the delay")
        assert found["value"] == pytest.approx(DELAY_US / 1e3, rel=WITHIN), found
        for parent in parents:
            change = _change(held, parent)
            assert change["low"] < 1.1 * DELAY_US / 1e3
            assert change["high"] > 0.9 * DELAY_US / 1e3
        (effect,) = (one for one in held["effects"] if one["quantity"] == {"name": span, "where": "host"})
        assert effect["adjusted"] < 0.01
        shown = (one for one in held["effects"] if one["adjusted"] is not None and one["adjusted"] < 0.05)
        moved = {one["quantity"]["name"] for one in shown if _ms(one) > NOTHING}
        assert moved <= {span, *parents, "cycle", "host waits", "output.wait", "itl_ms", "tokens_per_s"}

    judged(measure)


def _held(capsys: Captured, span: str, us: int, cycles: int = 25) -> dict[str, Any]:
    """What a campaign says of the arm in which a span is held up."""
    delay = f'delay = {{ "{span}" = {us} }}'
    plan = ["repeats = 8", f"cycles = {cycles}", "warmup = 5", "[[arm]]", 'name = "held"', delay]
    (held,) = (arm for arm in measured(capsys, *plan)["arms"] if arm["name"] == "held")
    return dict(held)


def _change(arm: dict[str, Any], name: str) -> dict[str, float]:
    """By how many ms of the host an arm changed a span, with its interval."""
    effects = (one for one in arm["effects"] if one["quantity"] == {"name": name, "where": "host"})
    return dict(next(effects)["change"]["difference"])


def _ms(effect: dict[str, Any]) -> float:
    return abs(float(effect["change"]["difference"]["value"]))
