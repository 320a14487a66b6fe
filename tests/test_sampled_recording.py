"""Where spans are known of some cycles only, all that is made of spans is of those, and all else is of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recordings import cycles_of, header, make_recording, sampled, spans_of

from analyzers.attribution import pair
from analyzers.co_saturation import Verdict, co_saturation
from analyzers.compare import compare
from analyzers.economics import economics
from analyzers.per_cycle import measure
from analyzers.quantities import CYCLE, Quantity, units
from analyzers.span_table import span_table
from analyzers.trust import Trust, trust
from spantrace.cli.main import run
from spantrace.cli.trusting import trust_facts
from spantrace.recording import Recording
from spantrace.spans import SPAN_NAMES, Track

CYCLES, MS = 1000, 1_000_000
IN_DETAIL = np.arange(CYCLES) // 8 % 5 == 0
SLOWER = np.where(IN_DETAIL, 1.05, 1.0)
"""Recording a cycle's spans takes its time."""


@pytest.fixture(scope="module")
def full() -> Recording:
    """Every span of every cycle."""
    return make_recording(cycles=CYCLES, slowness=SLOWER)


@pytest.fixture(scope="module")
def some(full: Recording) -> Recording:
    """The same cycles of which one run in five was recorded in detail."""
    return sampled(full)


def median_ms(recording: Recording, chosen: object) -> float:
    """The median period of some cycles."""
    period = recording.cycles.period[chosen]
    return float(np.median(period[period > 0])) / 1e6


def test_spans_are_those_of_the_cycles_in_detail_whose_neighbours_are_too(full: Recording, some: Recording) -> None:
    known = some.cycles.detail
    assert known.sum() == 25 * 6 + 1, "the first cycle has no neighbour that is not"
    for name in SPAN_NAMES[1:]:
        for track in Track:
            values, whole = measure(some).of(name, track), measure(full).of(name, track)
            assert np.array_equal(values[known], whole[known], equal_nan=True), name
            assert np.isnan(values[~known]).all(), name


def test_the_parts_add_up_to_the_period_of_the_cycles_that_they_are_of(some: Recording) -> None:
    rows = span_table(some).rows
    assert sum(one.host.share for one in rows if one.depth == 1 and one.host) == pytest.approx(1.0, abs=1e-9)
    gpu = {one.name: one.gpu.share for one in rows if one.gpu}
    assert gpu["cycle"] + gpu["GPU idle"] == pytest.approx(1.0)
    assert {one.name: one.calls for one in rows}["target.metadata.mamba"] == 5.0
    residuals = {one.name: one.residual for one in rows if one.residual is not None}
    assert residuals["target.metadata"] == pytest.approx(0.02, abs=0.02)


def test_the_verdict_is_of_the_cycles_in_detail(some: Recording) -> None:
    found = co_saturation(some)
    assert found is not None
    assert found.verdict is Verdict.HOST_BOUND
    assert found.full_graphs, "of the other cycles the graph is not known"
    assert found.period.ms == median_ms(some, some.cycles.detail)
    assert found.host.ms + found.wait.ms + found.unattributed.ms == pytest.approx(found.period.ms, rel=0.02)


def test_economics_are_of_all_cycles(full: Recording, some: Recording) -> None:
    found, whole = economics(some), economics(full)
    assert (found.acceptance, found.ms_per_token) == (whole.acceptance, whole.ms_per_token)
    assert found.drafter_host_share == pytest.approx(whole.drafter_host_share, rel=0.05)


def test_a_comparison_takes_all_periods_and_the_spans_that_are_known(full: Recording, some: Recording) -> None:
    rows = {(one.name, one.track): one for one in compare([full], [some]).rows}
    assert rows["cycle", Track.HOST].delta == 0
    found = rows["sample", Track.HOST]
    assert found.b is not None
    assert found.b.n == some.cycles.detail.sum()
    assert not any(one.shown for one in rows.values() if one.absent is None and one.track is Track.GPU)


def test_quantities_of_a_run_balance_in_its_cycles_in_detail(some: Recording) -> None:
    found = {str(key): float(values[0]) for key, values in units([some]).items()}
    assert found["cycle.host"] == median_ms(some, slice(None)) < median_ms(some, some.cycles.detail)
    spans = sum(found[f"{one.name}.host"] for one in span_table(some).rows if one.depth == 1 and one.calls and one.host)
    rest = found["unattributed.host"] + found["between cycles.host"]
    assert spans + rest == pytest.approx(median_ms(some, some.cycles.detail), rel=0.02)
    assert found["target.metadata.own"] > 0
    assert Quantity("GPU idle", "gpu") in units([some])


def test_a_drift_is_seen_in_spans_that_are_known_of_some_cycles_only() -> None:
    runs = [[sampled(make_recording(cycles=200, slowness=slow, seed=seed)) for seed in range(4)] for slow in (1.0, 1.2)]
    (arm,) = pair(*runs).arms
    moved = {str(one.quantity): one.change for one in arm.drift}
    host = moved["untouched spans.host"]
    assert host is not None
    assert host.difference.value > 0.5
    assert len(units(runs[0])[CYCLE]) == 4


def said(found: Trust) -> str:
    return "\n".join(part for fact in trust_facts(found, "2026-11-29") for part in fact.parts)


def test_trust_says_of_how_many_cycles_spans_are_known_and_what_those_cost(some: Recording) -> None:
    found = trust(some)
    assert (found.cycles, found.detail_cycles, found.gpu_cycles) == (CYCLES, 151, 151)
    assert found.period_ms == median_ms(some, slice(None))
    assert found.detail_period_ms == median_ms(some, some.cycles.detail)
    assert "spans known in 151 of 1,000 cycles, which take 7.53 ms, all 7.22" in said(found)
    assert "GPU timed" not in said(found)
    assert found.doubts == ()


def test_own_cost_of_a_cycle_in_detail_and_on_average_by_hand() -> None:
    """Of ten cycles one has ten rows of 200 ns and eight events of 1 us, the others three rows."""
    rows = [("schedule", Track.HOST, cycle, 10 * cycle * MS, 10 * cycle * MS + 9) for cycle in range(10)] * 3
    rows += [("sample", Track.HOST, 5, 50 * MS, 50 * MS + 9)] * 7 + [("sample", Track.GPU, 5, 50 * MS, 50 * MS + 9)]
    cycles = cycles_of(
        [(10 * cycle * MS, 10 * cycle * MS + 9 * MS) for cycle in range(10)],
        last_period=10 * MS,
        detail=[cycle == 5 for cycle in range(10)],
    )
    found = trust(Recording(header(), cycles, spans_of(rows)))
    assert (found.own_cost_us, found.own_cost_share) == (10.0, pytest.approx(0.001))
    assert found.mean_cost_us == pytest.approx((37 * 0.2 + 8) / 10)
    assert "own cost at least 10.0 us a cycle in detail (0.10%), 1.54 on average (0.02%), 200 ns a span" in said(found)


def test_where_every_cycle_is_in_detail_there_is_one_cost() -> None:
    found = trust(make_recording())
    assert (found.detail_cycles, found.cycles) == (400, 400)
    assert found.own_cost_us == found.mean_cost_us
    assert "a cycle in detail" not in said(found)
    assert "spans known" not in said(found)


def test_too_few_cycles_in_detail_are_a_doubt() -> None:
    found = trust(sampled(make_recording(cycles=120)))
    assert [one.text for one in found.doubts] == [
        "spans are known in 19 cycles only: record more cycles, or --detail-every 1"
    ]


def test_gpu_times_are_missed_in_cycles_in_detail_only(some: Recording) -> None:
    unread = (some.spans.track == Track.GPU) & np.isin(some.spans.cycle, [202, 203])
    spans = replace(some.spans, **{name: column[~unread] for name, column in vars(some.spans).items()})
    found = trust(replace(some, spans=spans))
    assert "GPU times of 4 of 151 cycles in detail are missing" in [one.text for one in found.doubts]
    assert "GPU timed in 147 of 151 cycles" in said(found)


def test_a_recording_without_a_cycle_in_detail_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = make_recording(cycles=30)
    path = tmp_path / "none.spantrace"
    replace(none, cycles=replace(none.cycles, detail=np.zeros(30, dtype=bool))).save(path)
    assert run(["report", str(path)]) == 2
    assert (
        "of the 30 cycles of this kind none was recorded in detail; record more, or with --detail-every 1"
        in capsys.readouterr().err
    )


def test_the_cycles_in_detail_come_back_from_a_file_and_a_subset(some: Recording, tmp_path: Path) -> None:
    from spantrace.loading import load

    some.save(tmp_path / "some.spantrace")
    read = load(tmp_path / "some.spantrace").cycles.detail
    assert read.dtype == np.bool_
    assert np.array_equal(read, some.cycles.detail)
    half = some.only(np.arange(CYCLES) % 2 == 0)
    assert np.array_equal(half.cycles.detail, some.cycles.detail[::2])
