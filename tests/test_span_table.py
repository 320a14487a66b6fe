"""The span tree: costs, shares, calls, and what is left over."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import NEMOTRON_GPU, NEMOTRON_HOST, cycles_of, header, make_recording, spans_of

from analyzers.per_cycle import Union, measure
from analyzers.span_table import SpanRow, span_table
from spantrace.recording import Recording
from spantrace.spans import PARENT, Kind, Track

HOST, GPU = Track.HOST, Track.GPU
MS = 1_000_000


def one_cycle(*rows: tuple[str, Track, int, int]) -> Recording:
    """A cycle of 8 ms that is followed by the next one 10 ms after its start; rows in ms."""
    spans = spans_of((name, track, 0, start * MS, end * MS) for name, track, start, end in rows)
    return Recording(header(), cycles_of([(0, 8 * MS)], last_period=10 * MS), spans)


def row(recording: Recording, name: str) -> SpanRow:
    found = span_table(recording).row(name)
    assert found is not None
    return found


def test_what_two_processes_wait_at_once_counts_once_and_where_they_do() -> None:
    """The engine waits 1 to 7 ms; its worker's thread waits 5 to 9 for the same cycle and, late, to 12 for this one."""
    rows = [("output.wait", HOST, 0, 1, 7, 0), ("output.wait", HOST, 0, 5, 9, 1), ("output.wait", HOST, 0, 11, 12, 1)]
    spans = spans_of((name, track, at, start * MS, end * MS, lane) for name, track, at, start, end, lane in rows)
    waits = row(Recording(header(), cycles_of([(0, 8 * MS)], last_period=10 * MS), spans), "output.wait")
    assert waits.host is not None
    assert (waits.host.ms, waits.host.share) == (8.0, 0.8)


def test_every_number_of_a_cycle_written_by_hand() -> None:
    recording = one_cycle(
        ("schedule", HOST, 0, 1),
        ("target.metadata", HOST, 1, 5),
        ("target.metadata.mamba", HOST, 1, 2),
        ("target.metadata.mamba", HOST, 2, 4),
        ("output.wait", HOST, 6, 8),
        ("schedule", GPU, 3, 4),
        ("target.forward", GPU, 4, 9),
    )
    rows = {one.name: one for one in span_table(recording).rows}
    host = {name: one.host.ms for name, one in rows.items() if one.host}
    assert host == {
        "cycle": 10.0,
        "schedule": 1.0,
        "target.metadata": 4.0,
        "target.metadata.mamba": 3.0,
        "output.wait": 2.0,
        "unattributed": 1.0,
        "between cycles": 2.0,
    }
    assert {name: one.gpu.ms for name, one in rows.items() if one.gpu} == {
        "cycle": 6.0,
        "schedule": 1.0,
        "target.forward": 5.0,
        "GPU idle": 4.0,
    }
    assert (rows["schedule"].calls, rows["target.metadata.mamba"].calls) == (1.0, 2.0)
    assert rows["target.metadata"].residual == 0.25
    assert rows["cycle"].residual == pytest.approx(0.1)
    assert [name for name, one in rows.items() if one.wait] == ["output.wait"]
    assert rows["target.forward"].host is None


def test_draft_propose_spans_its_children_on_the_gpu_unless_it_has_rows_of_its_own() -> None:
    children = (("draft.input_prep", GPU, 1, 2), ("draft.forward", GPU, 4, 6))
    found = row(one_cycle(("draft.propose", HOST, 0, 1), *children), "draft.propose")
    assert found.gpu is not None
    assert found.gpu.ms == 5.0
    own = row(one_cycle(("draft.propose", GPU, 1, 7), *children), "draft.propose")
    assert own.gpu is not None
    assert own.gpu.ms == 6.0


def test_the_gaps_inside_a_hull_are_not_gpu_busy() -> None:
    found = row(one_cycle(("draft.input_prep", GPU, 1, 2), ("draft.forward", GPU, 4, 6)), "cycle")
    assert found.gpu is not None
    assert found.gpu.ms == 3.0


def test_a_span_of_one_cycle_in_four_has_the_median_of_that_cycle() -> None:
    cycles = cycles_of([(index * 10 * MS, index * 10 * MS + 8 * MS) for index in range(4)], last_period=10 * MS)
    spans = spans_of([("draft.metadata", HOST, 2, 21 * MS, 26 * MS)])
    found = row(Recording(header(), cycles, spans), "draft.metadata")
    assert found.host is not None
    assert (found.host.ms, found.host.share, found.calls) == (5.0, 0.125, 0.25)


def test_only_the_chosen_kind_counts() -> None:
    kind = [Kind.STEADY, Kind.PREFILL]
    cycles = cycles_of([(0, 8 * MS), (10 * MS, 90 * MS)], kind=kind, last_period=90 * MS)
    spans = spans_of([("schedule", HOST, 0, 0, MS), ("schedule", HOST, 1, 10 * MS, 60 * MS)])
    recording = Recording(header(), cycles, spans)
    steady, prefill = row(recording, "schedule"), span_table(recording, frozenset({Kind.PREFILL})).row("schedule")
    assert steady.host is not None
    assert prefill is not None
    assert prefill.host is not None
    assert (steady.host.ms, prefill.host.ms) == (1.0, 50.0)


def test_an_emitting_thread_beside_the_engine_is_no_host_work() -> None:
    recording = one_cycle(("schedule", HOST, 0, 1), ("output.emit", HOST, 2, 7))
    assert row(recording, "output.emit").own_thread
    unattributed = row(recording, "unattributed").host
    assert unattributed is not None
    assert unattributed.ms == 7.0


def test_emitting_within_the_cycle_is_host_work() -> None:
    recording = one_cycle(("cycle", HOST, 0, 8), ("schedule", HOST, 0, 1), ("output.emit", HOST, 2, 7))
    assert not row(recording, "output.emit").own_thread
    unattributed = row(recording, "unattributed").host
    assert unattributed is not None
    assert unattributed.ms == 2.0


def test_children_that_exceed_their_parent_have_a_negative_residual() -> None:
    recording = one_cycle(("target.metadata", HOST, 0, 2), ("target.metadata.gdn", HOST, 0, 3))
    assert row(recording, "target.metadata").residual == -0.5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0.0, 0.1))
def test_shares_of_the_cycles_parts_sum_to_one(seed: int, noise: float) -> None:
    rows = span_table(make_recording(cycles=60, seed=seed, noise=noise)).rows
    parts = [one.host.share for one in rows if one.depth == 1 and one.host]
    assert sum(parts) == pytest.approx(1.0, abs=1e-9)
    gpu = {one.name: one.gpu.share for one in rows if one.gpu}
    assert gpu["cycle"] + gpu["GPU idle"] == pytest.approx(1.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=20), st.integers(0, 30))
def test_the_union_counts_each_nanosecond_once(intervals: list[tuple[int, int]], low: int) -> None:
    import numpy as np

    spans = spans_of([("schedule", HOST, 0, start, start + length) for start, length in intervals])
    recording = Recording(header(), cycles_of([(0, 100)]), spans)
    covered = {t for start, length in intervals for t in range(start, start + length)}
    window = np.array([low]), np.array([low + 25])
    found = Union(recording.spans.start, recording.spans.end).within(*window)
    assert found[0] == len(covered & set(range(low, low + 25)))


def test_rows_come_in_the_order_of_the_tree() -> None:
    names = [one.name for one in span_table(make_recording(cycles=50)).rows]
    expected = [name for name in PARENT if name in names]
    assert names == [*expected, "unattributed", "between cycles", "GPU idle"]


def test_per_cycle_sums_agree_with_the_recording() -> None:
    recording = make_recording(NEMOTRON_HOST, NEMOTRON_GPU, cycles=30)
    cycle = measure(recording)
    for name in ("target.metadata.mamba", "sample"):
        assert (cycle.of(name) == recording.durations(name)).all()
    assert (cycle.of("sample", GPU) == recording.durations("sample", GPU)).all()


def test_spans_are_priced_by_the_cycles_in_detail() -> None:
    bounds = [(index * 10 * MS, index * 10 * MS + 8 * MS) for index in range(4)]
    cycles = cycles_of(bounds, last_period=10 * MS, detail=[False, False, True, False])
    rows = [("draft.propose", HOST, index, (10 * index + 1) * MS, (10 * index + 7) * MS) for index in range(3)]
    rows += [("draft.metadata", HOST, 2, 21 * MS, 24 * MS), ("draft.metadata", HOST, 2, 24 * MS, 26 * MS)]
    rows += [("schedule", HOST, index, 10 * index * MS, (10 * index + 1 + index % 2) * MS) for index in range(4)]
    recording = Recording(header(), cycles, spans_of(sorted(rows, key=lambda r: r[3])))
    found = row(recording, "draft.metadata")
    assert found.host is not None
    assert (found.host.ms, found.host.share, found.calls) == (5.0, 0.5, 2.0)
    assert row(recording, "draft.propose").residual == pytest.approx(1 / 6)
    assert row(recording, "draft.propose").calls == 1.0
    schedule = row(recording, "schedule").host
    assert schedule is not None
    assert (schedule.ms, schedule.p90, schedule.share) == (1.0, 1.0, 0.1)
    assert span_table(recording).cycles == 4
