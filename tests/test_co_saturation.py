"""Who bounds the cycle: the stock figures of two models, and cycles written by hand."""

from __future__ import annotations

import pytest
from recordings import NEMOTRON_GPU, NEMOTRON_HOST, QWEN3_GPU, QWEN3_HOST, cycles_of, header, make_recording, spans_of

from analyzers.co_saturation import CoSaturation, Verdict, co_saturation
from analyzers.trust import trust
from spantrace.recording import Recording
from spantrace.spans import GraphMode, Kind, Track

HOST, GPU = Track.HOST, Track.GPU
MS = 1_000_000
Rows = list[tuple[str, Track, int, int, int, int]]


def judged(recording: Recording) -> CoSaturation:
    found = co_saturation(recording)
    assert found is not None
    return found


def cycle(length: int, *rows: tuple[str, Track, int, int], lane: int = 0) -> Recording:
    spans = spans_of([(name, track, 0, start * MS, end * MS, lane) for name, track, start, end in rows])
    return Recording(header(), cycles_of([(0, length * MS)], last_period=10 * MS), spans)


def test_nemotron_h_on_the_h200_is_host_bound() -> None:
    found = judged(make_recording(NEMOTRON_HOST, NEMOTRON_GPU))
    assert found.verdict is Verdict.HOST_BOUND
    assert found.period.ms == pytest.approx(7.2, abs=0.1)
    assert found.host.ms == pytest.approx(6.9, abs=0.1)
    assert found.wait.ms == pytest.approx(0.02)
    assert found.gpu is not None
    assert found.gpu.ms == pytest.approx(5.27, abs=0.03)
    assert found.host_win == 1.0
    assert found.gpu_win == pytest.approx(0.02, abs=1e-4)


def test_qwen3_8b_on_the_h200_is_gpu_bound() -> None:
    found = judged(make_recording(QWEN3_HOST, QWEN3_GPU))
    assert found.verdict is Verdict.GPU_BOUND
    assert found.period.ms == pytest.approx(6.68, abs=0.05)
    assert found.wait.ms > 1.5
    assert found.host_win == pytest.approx(0.0, abs=0.05)
    assert found.gpu_win == 1.0


def test_both_near_the_period_are_co_saturated() -> None:
    found = judged(make_recording(NEMOTRON_HOST, {**NEMOTRON_GPU, "target.forward": 5.9}))
    assert found.verdict is Verdict.CO_SATURATED
    assert found.host_win == pytest.approx(0.3, abs=0.1)


def test_without_a_gpu_track_there_is_no_verdict() -> None:
    found = judged(make_recording(kernels=None))
    assert found.verdict is Verdict.HOST_ONLY
    assert (found.gpu, found.idle, found.host_win, found.gpu_win) == (None, None, None, None)


def test_host_and_gpu_in_turns() -> None:
    recording = cycle(10, ("schedule", HOST, 0, 6), ("output.wait", HOST, 6, 10), ("target.forward", GPU, 5, 10))
    found = judged(recording)
    assert found.verdict is Verdict.ALTERNATING
    assert (found.host.ms, found.wait.ms, found.occupied.ms) == (6.0, 4.0, 6.0)
    assert (found.host_win, found.gpu_win) == (1.0, 1.0)


def test_time_between_cycles_is_a_bound_elsewhere() -> None:
    found = judged(cycle(4, ("schedule", HOST, 0, 3), ("target.forward", GPU, 1, 5)))
    assert found.verdict is Verdict.ELSEWHERE
    assert (found.between.ms, found.unattributed.ms) == (6.0, 1.0)


def test_unattributed_time_inside_the_cycle_occupies_the_host() -> None:
    found = judged(cycle(10, ("schedule", HOST, 0, 7), ("target.forward", GPU, 0, 5)))
    assert found.verdict is Verdict.HOST_BOUND
    assert (found.host.ms, found.unattributed.ms, found.occupied.ms) == (7.0, 3.0, 10.0)


def test_overlapping_gpu_spans_count_once() -> None:
    found = judged(cycle(10, ("target.forward", GPU, 0, 6), ("sample", GPU, 4, 8)))
    assert found.gpu is not None
    assert found.gpu.ms == 8.0


def test_gpu_work_counts_in_the_period_in_which_it_runs() -> None:
    spans = spans_of([("target.forward", GPU, 0, 6 * MS, 14 * MS), ("target.forward", GPU, 1, 16 * MS, 17 * MS)])
    recording = Recording(header(), cycles_of([(0, 9 * MS), (10 * MS, 19 * MS)], last_period=10 * MS), spans)
    found = judged(recording)
    assert found.gpu is not None
    assert found.gpu.median.value == 4.5  # 4 ms in the first period, 4 + 1 ms in the second
    assert found.gpu.p90 == pytest.approx(4.9)


def test_a_worker_in_another_process_works_while_the_engine_waits() -> None:
    lanes = [{"process": 0, "thread": "main"}, {"process": 1, "thread": "main"}]
    rows: Rows = [
        ("schedule", HOST, 0, 0, 1 * MS, 0),
        ("output.wait", HOST, 0, 1 * MS, 9 * MS, 0),
        ("target.forward", HOST, 0, 2 * MS, 8 * MS, 1),
    ]
    processes = [{"role": "engine"}, {"role": "worker"}]
    recording = Recording(
        header(lanes=lanes, processes=processes), cycles_of([(0, 9 * MS)], last_period=10 * MS), spans_of(rows)
    )
    found = judged(recording)
    assert found.verdict is Verdict.HOST_ONLY
    assert (found.host.ms, found.wait.ms) == (7.0, 2.0)
    assert [(one.role, one.work.ms) for one in found.processes] == [("engine", 1.0), ("worker", 6.0)]


def test_a_cycle_without_a_successor_has_no_period_and_does_not_count() -> None:
    spans = spans_of([("schedule", HOST, 0, 0, MS), ("schedule", HOST, 1, 10 * MS, 15 * MS)])
    recording = Recording(header(), cycles_of([(0, 9 * MS), (10 * MS, 19 * MS)]), spans)
    assert judged(recording).host.ms == 1.0
    assert co_saturation(recording, frozenset({Kind.PREFILL})) is None


def test_the_intervals_hold_the_medians() -> None:
    found = judged(make_recording())
    for cost in (found.period, found.host, found.gpu):
        assert cost is not None
        assert cost.median.low is not None
        assert cost.median.high is not None
        assert cost.median.low <= cost.ms <= cost.median.high


def test_eager_launches_are_not_called_full_graphs() -> None:
    spans = spans_of([("target.forward", GPU, 0, 0, MS)])
    cycles = cycles_of([(0, 9 * MS)], last_period=10 * MS, graph=GraphMode.PIECEWISE)
    assert not judged(Recording(header(), cycles, spans)).full_graphs
    assert judged(make_recording(cycles=20)).full_graphs


def test_a_wait_inside_a_span_is_no_work() -> None:
    found = judged(cycle(10, ("cycle", HOST, 0, 10), ("postprocess", HOST, 1, 9), ("output.wait", HOST, 2, 8)))
    assert found.host.ms == pytest.approx(2)
    assert found.wait.ms == pytest.approx(6)
    assert found.processes[0].work.ms == pytest.approx(2)


def test_a_wait_on_another_lane_cuts_no_span() -> None:
    rows = [("cycle", HOST, 0, 0, 10 * MS, 0), ("postprocess", HOST, 0, MS, 9 * MS, 1)]
    rows += [("output.wait", HOST, 0, 2 * MS, 8 * MS, 0)]
    found = judged(Recording(header(), cycles_of([(0, 10 * MS)], last_period=10 * MS), spans_of(rows)))
    assert found.host.ms == pytest.approx(8)


def test_a_cycle_whose_events_were_not_read_has_no_gpu_time() -> None:
    rows: Rows = [("schedule", HOST, n, 10 * n * MS, (10 * n + 8) * MS, 0) for n in range(3)]
    rows += [("target.forward", GPU, n, 10 * n * MS, (10 * n + 8) * MS, 1) for n in range(2)]
    spans = spans_of(sorted(rows, key=lambda row: row[3]))
    recording = Recording(
        header(), cycles_of([(10 * n * MS, 10 * (n + 1) * MS) for n in range(3)], last_period=10 * MS), spans
    )
    found = judged(recording)
    assert found.gpu is not None
    assert found.gpu.ms == pytest.approx(8)
    assert "GPU times of 2 of 3 cycles are missing" in [doubt.text for doubt in trust(recording).doubts]
    assert trust(recording).gpu_cycles == 1
