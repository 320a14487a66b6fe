"""An engine with its worker in one process is recorded in detail in runs of cycles, and counted and timed in all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sampled_server
from sampled_server import ACCEPTED, DRAFTED, EVERY_CYCLE, LIKE, MODEL_HOOKS, Sampled

from analyzers.co_saturation import gpu_busy
from spantrace.sampling import RUN
from spantrace.spans import SPAN_NAMES, GraphMode, Kind, Track

TURNS = 6 * RUN
DETAILED = np.array([turn // RUN % 2 == 0 for turn in range(TURNS)])
IN_DETAIL = [
    "schedule",
    "output.wait",
    "target.metadata.attention",
    "target.metadata",
    "target.forward",
    "sample",
    "draft.input_prep",
    "draft.propose",
    "postprocess",
    "output.wait",
    "output.update",
    "cycle",
]
"""A turn's rows in the order in which they end; the first wait is the one for an event."""


@pytest.fixture
def before() -> list[Any]:
    """What the functions are without hooks."""
    return originals()


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch, before: list[Any]) -> Iterator[Sampled]:
    """A recording of which one run in two is in detail; afterwards everything is as it was."""
    monkeypatch.setattr("spantrace.vllm_adapter.installation.MODEL_HOOKS", MODEL_HOOKS)
    made = Sampled(every=2)
    yield made
    made.installation.remove()
    assert originals() == before
    assert (made.recorder.errors, made.recorder.first_error) == (0, "")


def originals() -> list[Any]:
    """The functions and their code."""
    found = []
    for name in (*LIKE, "Model.forward"):
        value: Any = sampled_server
        for part in name.split("."):
            value = getattr(value, part)
        found += [value, value.__code__]
    return found


def test_a_cycle_is_in_detail_or_it_is_only_counted_and_timed(sampled: Sampled) -> None:
    turns = [sampled.turn() for _ in range(TURNS)]
    expected = [IN_DETAIL if detail else ["schedule", "output.update", "cycle"] for detail in DETAILED]
    assert turns == expected
    assert set(expected[-1]) == set(EVERY_CYCLE)


def test_out_of_detail_all_but_a_class_attribute_is_as_it_was(sampled: Sampled, before: list[Any]) -> None:
    event = sampled.engine.worker.model_runner.prepare_inputs_event
    for _ in range(RUN + 1):
        sampled.turn()
    code = zip((*LIKE, "Model.forward"), before[1::2], originals()[1::2], strict=True)
    changed = {name for name, then, now in code if then is not now}
    assert changed == {
        "Engine._process_engine_step",
        "Scheduler.schedule",
        "Scheduler.update_from_output",
        "Scheduler.make_spec_decoding_stats",
        "Worker.execute_model",
        "Model.forward",
    }
    assert sampled.engine.worker.model_runner.prepare_inputs_event is event


def test_a_class_attribute_is_set_once_however_often_detail_comes_and_goes(sampled: Sampled) -> None:
    seen = set()
    for _ in range(TURNS):
        sampled.turn()
        seen.add(id(vars(sampled_server.Model)["forward"]))
    assert len(seen) == 1


def test_counts_and_periods_are_of_every_cycle_and_spans_of_those_in_detail(sampled: Sampled) -> None:
    for _ in range(TURNS):
        sampled.turn()
    recording = sampled.joined()
    cycles = recording.cycles
    assert len(cycles) == TURNS
    assert (cycles.kind == Kind.STEADY).all()
    assert (cycles.period[:-1] > 0).all()
    assert cycles.drafting.sum() == TURNS
    assert (cycles.drafted.sum(), cycles.accepted.sum()) == (DRAFTED * TURNS, ACCEPTED * TURNS)
    inner = DETAILED & np.append(True, DETAILED[:-1]) & np.append(DETAILED[1:], True)
    assert np.array_equal(cycles.detail, inner)
    assert np.array_equal(cycles.graph_mode == GraphMode.FULL, DETAILED)
    for name in SPAN_NAMES:
        has = recording.calls(name) > 0
        assert not has.any() or np.array_equal(has, DETAILED | (name in EVERY_CYCLE)), name


def test_what_is_drawn_is_drawn_in_detail_only(sampled: Sampled) -> None:
    for _ in range(TURNS):
        sampled.turn()
    recording = sampled.joined()
    for name in ("target.input_prep", "postprocess", "draft.input_prep"):
        assert np.array_equal(recording.calls(name) > 0, DETAILED), name
    longest = np.nanmax(recording.durations("postprocess"))
    assert longest < np.nanmax(recording.durations("cycle"))


def test_the_gpu_is_timed_in_detail_only(sampled: Sampled) -> None:
    marks = []
    for _ in range(TURNS):
        before = sampled.clock.records()
        sampled.turn()
        marks.append(sampled.clock.records() - before)
    assert set(np.array(marks)[~DETAILED].tolist()) == {0}
    assert set(np.array(marks)[DETAILED].tolist()) == {4}, "two of sample, one of each that follows"
    health = sampled.recorder.health()
    assert (health["gpu_cycles"], health["gpu_records"], health["gpu_skipped"]) == (DETAILED.sum(), sum(marks), 0)
    recording = sampled.joined()
    assert np.array_equal(recording.calls("sample", Track.GPU) > 0, DETAILED)
    assert recording.header["calibration"]["gpu_events_per_cycle"] == 4.0
    busy = gpu_busy(recording)
    assert busy is not None
    assert len(busy) == (recording.cycles.detail & (recording.cycles.period > 0)).sum()
    assert not np.isnan(busy).any()


def test_a_pause_in_the_middle_of_a_run_puts_nothing_in_twice(sampled: Sampled) -> None:
    for turn in range(TURNS):
        sampled.turn()
        if turn % 5 == 0:
            sampled.installation.suspend()
            assert sampled.turn() == []
            sampled.installation.install()
    assert sampled.turn()[-1] == "cycle"


def test_a_switch_for_which_a_worker_would_have_to_wait_comes_later_and_is_told(sampled: Sampled) -> None:
    for _ in range(RUN):
        sampled.turn()
    with sampled.installation._lock:
        assert sampled.turn() == IN_DETAIL
    assert sampled.turn() == ["schedule", "output.update", "cycle"]
    told = [fact[-1] for frame in sampled.frames for fact in frame.get("facts", ()) if fact[0] == "execute"]
    assert told == [1] * (RUN + 1) + [0]
