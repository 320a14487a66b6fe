"""Two recordings side by side."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import NEMOTRON_GPU, NEMOTRON_HOST, cycles_of, header, make_recording, spans_of

from analyzers.compare import Comparison, SpanDelta, compare, configuration, differences
from spantrace.errors import SpantraceError
from spantrace.recording import Recording
from spantrace.spans import Track

HOST, GPU = Track.HOST, Track.GPU
MS = 1_000_000
FIXED = {**NEMOTRON_HOST, "target.metadata": 1.06, "target.metadata.mamba": 0.02, "draft.metadata": 0.04}


def delta(found: Comparison, name: str, track: Track = HOST) -> SpanDelta:
    return next(row for row in found.rows if (row.name, row.track) == (name, track))


def steady(schedule_ms: float, cycles: int = 100) -> Recording:
    """Cycles of 10 ms with one span that takes the same time in each."""
    bounds = [(index * 10 * MS, index * 10 * MS + 9 * MS) for index in range(cycles)]
    spans = spans_of(("schedule", HOST, i, bounds[i][0], bounds[i][0] + round(schedule_ms * MS)) for i in range(cycles))
    return Recording(header(), cycles_of(bounds, last_period=10 * MS), spans)


def test_a_span_that_takes_half_as_long_by_hand() -> None:
    row = delta(compare([steady(2.0)], [steady(1.0)]), "schedule")
    assert row.a is not None
    assert row.b is not None
    assert (row.a.value, row.b.value, row.delta) == (2.0, 1.0, -0.5)
    assert (row.low, row.high) == (pytest.approx(-0.5), pytest.approx(-0.5))
    assert row.units == (10, 10)
    assert row.shown


def test_equal_medians_show_nothing() -> None:
    row = delta(compare([steady(2.0)], [steady(2.0)]), "schedule")
    assert (row.delta, row.p, row.shown) == (0.0, 1.0, False)


def test_blocks_that_are_too_few_to_show_anything_are_not_called_equal() -> None:
    few, many = (
        delta(compare([steady(2.0)], [steady(1.0, cycles=10)]), "schedule"),
        delta(compare([steady(2.0)], [steady(1.0)]), "schedule"),
    )
    assert (few.units, few.shown, few.too_few) == ((10, 1), False, True)
    assert (many.shown, many.too_few) == (True, False)


def test_the_fix_is_found_and_untouched_spans_are_not() -> None:
    found = compare([make_recording(seed=1)], [make_recording(FIXED, seed=2)])
    cycle, metadata = delta(found, "cycle"), delta(found, "target.metadata")
    assert cycle.delta == pytest.approx(-0.23, abs=0.01)
    assert metadata.delta == pytest.approx(-0.615, abs=0.01)
    assert metadata.low is not None
    assert metadata.high is not None
    assert metadata.low <= -0.6145 <= metadata.high
    untouched = [row for row in found.rows if row.name in ("schedule", "sample", "target.forward", "output.update")]
    assert sum(row.shown for row in untouched) <= 1


def test_a_span_of_one_side_is_absent_not_zero() -> None:
    stock, fixed = make_recording(seed=1), make_recording(FIXED, seed=2)
    row = delta(compare([stock], [fixed]), "draft.metadata")
    assert (row.absent, row.a, row.delta, row.p, row.shown) == ("A", None, None, None, False)
    assert delta(compare([fixed], [stock]), "draft.metadata").absent == "B"


def test_a_gpu_track_of_one_side_is_absent_on_the_other() -> None:
    found = compare([make_recording()], [make_recording(kernels=None)], ["gpu", "driver", "torch"])
    assert delta(found, "target.forward", GPU).absent == "B"
    assert delta(found, "cycle", GPU).absent == "B"


def test_a_comparison_with_itself_shows_nothing() -> None:
    found = compare([make_recording()], [make_recording()])
    assert not any(row.shown for row in found.rows)
    assert all(row.delta == 0 for row in found.rows)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_compare_is_antisymmetric(seed: int) -> None:
    a, b = make_recording(seed=seed, cycles=120), make_recording(FIXED, seed=seed + 1, cycles=120)
    there, back = compare([a], [b]), compare([b], [a])
    for row, mirrored in zip(there.rows, back.rows, strict=True):
        assert (row.a, row.b) == (mirrored.b, mirrored.a)
        if row.delta is not None:
            assert row.low is not None
            assert mirrored.delta is not None
            assert mirrored.high is not None
            assert (1 + row.delta) * (1 + mirrored.delta) == pytest.approx(1)
            assert (1 + row.low) * (1 + mirrored.high) == pytest.approx(1)
            assert row.shown == mirrored.shown


def test_equal_servers_differ_at_about_the_nominal_rate() -> None:
    shown = tested = 0
    for seed in range(12):
        found = compare([make_recording(seed=2 * seed)], [make_recording(seed=2 * seed + 1)])
        rows = [row for row in found.rows if row.depth == 1 and row.track is HOST]
        shown, tested = shown + sum(row.shown for row in rows), tested + len(rows)
    assert tested >= 100
    assert shown <= 0.12 * tested  # 0.05 nominal


def test_runs_are_the_unit_where_both_sides_have_several() -> None:
    found = compare([steady(2.0 + i / 100) for i in range(4)], [steady(1.0 + i / 100) for i in range(4)])
    row = delta(found, "schedule")
    assert (found.unit, found.runs, found.cycles, row.units) == ("run", (4, 4), (400, 400), (4, 4))
    assert row.p == pytest.approx(2 / 70)
    assert compare([steady(1.0)], [steady(1.0)]).unit == "block"


def test_another_configuration_is_not_comparable() -> None:
    a, b = make_recording(cycles=20), make_recording(cycles=20, server={"vllm": "0.26.0"})
    with pytest.raises(SpantraceError, match=r"vllm: 0\.33\.0 against 0\.26\.0") as caught:
        compare([a], [b])
    assert caught.value.exit_code == 3
    assert [one.key for one in compare([a], [b], ["vllm"]).differences] == ["vllm"]
    assert [one.key for one in compare([a], [b], force=True).differences] == ["vllm"]


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ({"gpu": {"name": "NVIDIA H100"}}, "gpu"),
        ({"gpu": {"torch": "2.12"}}, "torch"),
        ({"host": {"cores": 8}}, "cores"),
        ({"server": {"async_scheduling": False}}, "async_scheduling"),
        ({"spantrace": "0.2.0"}, "spantrace"),
    ],
)
def test_each_part_of_the_configuration_counts(parts: dict[str, object], key: str) -> None:
    found = differences(make_recording(cycles=20), make_recording(cycles=20, **parts))
    assert [one.key for one in found] == [key]


def test_batch_is_configuration() -> None:
    cycles = [cycles_of([(0, MS), (2 * MS, 3 * MS)], batch=batch) for batch in (1, 4)]
    found = differences(*(Recording(header(), one, spans_of([])) for one in cycles))
    assert [(one.key, one.a, one.b) for one in found] == [("batch", 1, 4)]
    assert [type(value) for value in (found[0].a, found[0].b)] == [int, int]


def test_optimizations_addresses_and_clocks_are_no_configuration() -> None:
    other = make_recording(
        cycles=20,
        optimizations=[{"id": "split-kv", "hits": 5}],
        server={"url": "http://localhost:8001"},
    )
    assert differences(make_recording(cycles=20), other) == ()


def test_runs_of_one_side_must_be_alike() -> None:
    odd = make_recording(cycles=20, server={"vllm": "0.26.0"})
    with pytest.raises(SpantraceError, match="runs of one side"):
        compare([make_recording(cycles=20), odd], [make_recording(cycles=20)], ["vllm"])


def test_marks_in_graphs_are_a_difference() -> None:
    plain = make_recording(processes=[{"pid": 1, "role": "worker"}])
    marked = make_recording(processes=[{"pid": 1, "role": "worker", "graph_spans": {"empty_ns": 3.0, "spans": {}}}])
    with pytest.raises(SpantraceError, match="graph_spans: False against True"):
        compare([plain], [marked])
    assert compare([plain], [marked], vary=["graph_spans"]).rows


def test_a_key_that_does_not_exist_cannot_vary() -> None:
    with pytest.raises(SpantraceError, match="no configuration key: draftr") as caught:
        compare([steady(1.0)], [steady(1.0)], ["draftr"])
    assert caught.value.exit_code == 2
    assert "drafter" in configuration(steady(1.0))


def test_what_follows_from_the_drafter_varies_with_it() -> None:
    plain = {"engine": "built-in cycle", "model": "tiny", "batch": 4}
    a, b = (
        make_recording(cycles=60, server={**plain, "method": method, "num_speculative_tokens": k, "acceptance": rate})
        for method, k, rate in (("dflash", 2, "0.75"), (None, 0, None))
    )
    with pytest.raises(SpantraceError, match="not comparable"):
        compare([a], [b])
    assert {one.key for one in compare([a], [b], ["drafter"]).differences} == {
        "method",
        "num_speculative_tokens",
        "acceptance",
    }


def test_the_gpu_row_of_the_cycle_is_its_busy_time() -> None:
    slower = {**NEMOTRON_GPU, "target.forward": 5.3}
    row = delta(compare([make_recording(seed=1)], [make_recording(kernels=slower, seed=2)]), "cycle", GPU)
    assert row.a is not None
    assert row.b is not None
    assert row.b.value - row.a.value == pytest.approx(1.02, abs=0.05)


def test_a_side_without_steady_cycles_is_an_error() -> None:
    with pytest.raises(SpantraceError, match="B has no two cycles") as caught:
        compare([steady(1.0)], [Recording(header(), cycles_of([(0, MS)]), spans_of([]))])
    assert caught.value.exit_code == 2
