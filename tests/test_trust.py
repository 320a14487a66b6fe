"""What makes a recording doubtful."""

from __future__ import annotations

import numpy as np
import pytest
from recordings import cycles_of, header, make_recording, spans_of

from analyzers.trust import Trust, left_out, trust
from spantrace.recording import Recording
from spantrace.spans import Kind, Track

MS = 1_000_000


def texts(found: Trust, *, refuse: bool) -> str:
    return "\n".join(doubt.text for doubt in found.doubts if doubt.refuse == refuse)


def test_a_clean_recording_raises_no_doubt() -> None:
    found = trust(make_recording())
    assert found.doubts == ()
    assert (found.lost, found.hook_errors, found.missing, found.partial) == (0, 0, (), False)
    assert found.residual == pytest.approx(0.032, abs=0.001)
    assert set(found.residuals) == {"target.metadata", "draft.propose"}


def test_own_cost_by_hand() -> None:
    rows = [("schedule", Track.HOST, 0, 0, MS)] * 30 + [("sample", Track.GPU, 0, 0, MS)] * 7
    recording = Recording(header(), cycles_of([(0, 9 * MS)], last_period=10 * MS), spans_of(rows))
    found = trust(recording)
    assert found.own_cost_us == 14.0  # 30 host rows of 200 ns and 8 events of 1 us
    assert found.own_cost_share == pytest.approx(0.0014)


def test_an_uncalibrated_recording_has_an_unknown_cost() -> None:
    recording = make_recording()
    recording.header["calibration"] = {}
    found = trust(recording)
    assert (found.own_cost_us, found.own_cost_share) == (None, None)


def test_a_cost_over_budget_says_not_to_quote() -> None:
    found = trust(make_recording(calibration={"host_span_ns": 10_000.0}))
    assert found.own_cost_share is not None
    assert found.own_cost_share > 0.015
    assert "recording costs" in texts(found, refuse=True)


def test_losses_errors_and_missing_hooks_add_up_over_processes() -> None:
    processes = [
        {"role": "engine", "lost": 2, "hook_errors": 0, "first_error": "", "missing": ["b"]},
        {"role": "worker", "lost": 3, "hook_errors": 4, "first_error": "KeyError: 'x'", "missing": ["a", "b"]},
    ]
    found = trust(make_recording(processes=processes))
    assert (found.lost, found.hook_errors, found.missing) == (5, 4, ("a", "b"))
    assert "5 rows were lost" in texts(found, refuse=True)
    assert "KeyError: 'x'" in texts(found, refuse=True)


def test_partial_few_cycles_company_and_idle_optimizations_are_doubts() -> None:
    recording = make_recording(cycles=30, partial=True, optimizations=[{"id": "split-kv", "hits": 0}])
    recording.header["gpu"]["other_processes"] = [{"pid": 9}]
    doubts = texts(trust(recording), refuse=False)
    assert "cut off" in doubts
    assert "only 30 cycles" in doubts
    assert "1 other process" in doubts
    assert "split-kv was on and no call reached it" in doubts


def test_a_cycle_that_its_spans_do_not_explain() -> None:
    recording = Recording(
        header(),
        cycles_of([(0, 10 * MS)], last_period=10 * MS),
        spans_of([("schedule", Track.HOST, 0, 0, 5 * MS)]),
    )
    assert "50% of the cycle" in texts(trust(recording), refuse=False)


def test_children_beyond_their_parent_are_pointed_out() -> None:
    rows = [("draft.propose", Track.HOST, 0, 0, 2 * MS), ("draft.forward", Track.HOST, 0, 0, 4 * MS)]
    recording = Recording(header(), cycles_of([(0, 4 * MS)], last_period=4 * MS), spans_of(rows))
    assert "draft.propose exceed it by 100%" in texts(trust(recording), refuse=False)


def test_cycles_left_out_are_counted_with_those_that_the_recorder_dropped() -> None:
    kind = np.repeat([Kind.STEADY, Kind.PREFILL, Kind.AFTER_IDLE], [5, 2, 1]).tolist()
    cycles = cycles_of([(index * MS, index * MS + 1) for index in range(8)], kind=kind)
    recording = Recording(header(left_out={"partial": 2, "prefill": 1}), cycles, spans_of([]))
    assert left_out(recording) == {"prefill": 3, "after idle": 1, "partial": 2}
    assert left_out(recording, frozenset(Kind)) == {"partial": 2, "prefill": 1}
