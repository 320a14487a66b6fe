"""Medians, their intervals, and the comparison of two series."""

from __future__ import annotations

import numpy as np
import pytest
from campaigns import resample_less
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.changes import Change, change, estimate, resampled
from analyzers.statistics import Floats, block_medians, cost, holm, median_estimate, shift, smallest_p


def autocorrelated(seed: int, n: int = 400, rho: float = 0.7) -> Floats:
    random = np.random.default_rng(seed)
    values = np.zeros(n)
    for index, step in enumerate(random.normal(size=n)):
        values[index] = rho * values[index - 1] + step
    return 1000.0 + values


def test_nine_values_get_the_interval_of_order_statistics() -> None:
    # P(Binomial(9, 1/2) <= 1) = 10/512 = 0.0195 <= 0.025 < P(<= 2): the second from either end.
    found = median_estimate(np.array([9.0, 1, 8, 2, 7, 3, 6, 4, 5]))
    assert found is not None
    assert (found.value, found.low, found.high, found.n) == (5.0, 2.0, 8.0, 9)


def test_five_values_allow_no_95_percent_interval() -> None:
    found = median_estimate(np.arange(5.0))
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, None, None)


def test_sectioning_by_hand() -> None:
    # Four blocks of ten equal values: medians 1, 2, 3, 4 about 2.5, s = sqrt(5/3), t(3, 0.975) = 3.182446.
    found = median_estimate(np.repeat([1.0, 2.0, 3.0, 4.0], 10))
    assert found is not None
    half = 3.182446305284263 * np.sqrt(5 / 3 / 4)
    assert found.low == pytest.approx(2.5 - half)
    assert found.high == pytest.approx(2.5 + half)


def test_nan_is_left_out_and_nothing_is_none() -> None:
    found = median_estimate(np.array([np.nan, 4.0, np.nan, 2.0, 9.0]))
    assert found is not None
    assert (found.value, found.n) == (4.0, 3)
    assert median_estimate(np.full(3, np.nan)) is None
    assert len(block_medians(np.full(3, np.nan))) == 0


def test_the_interval_covers_the_median_of_an_autocorrelated_series() -> None:
    hits = 0
    for seed in range(200):
        found = median_estimate(autocorrelated(seed))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1000.0 <= found.high
    assert hits >= 176  # 0.95 nominal; an interval that takes cycles as independent gets about 120


def test_the_share_of_a_span_in_few_cycles_counts_the_others_as_zero() -> None:
    found = cost(np.array([5e6, np.nan, np.nan, np.nan]), np.full(4, 10e6))
    assert found is not None
    assert found.ms == 5.0
    assert found.p90 == 5.0
    assert found.share == 0.125


def test_four_runs_against_four_by_hand() -> None:
    # All of b lie above all of a: U = 0 and p = 2 / C(8, 4). P(U <= 0) = 1/70 <= 0.025 < P(U <= 1) = 2/70,
    # so the interval runs from the smallest to the largest of the 16 ratios.
    a = [np.full(20, value) for value in (100.0, 101, 102, 103)]
    b = [np.full(20, value) for value in (200.0, 202, 204, 206)]
    found = shift(a, b)
    assert found is not None
    assert found.p == pytest.approx(2 / 70)
    assert found.shown
    assert found.ratio == pytest.approx(203 / 101.5)
    assert found.low == pytest.approx(200 / 103)
    assert found.high == pytest.approx(206 / 100)


def test_three_runs_a_side_can_show_nothing() -> None:
    found = shift([np.full(5, v) for v in (1e3, 2e3, 3e3)], [np.full(5, v) for v in (7e3, 8e3, 9e3)])
    assert found is not None
    assert found.p == pytest.approx(0.1)
    assert not found.shown
    assert found.low is None


def test_equal_series_differ_by_nothing() -> None:
    found = shift([np.full(100, 20_000.0)], [np.full(100, 20_000.0)])
    assert found is not None
    assert (found.ratio, found.low, found.high, found.p) == (1.0, 1.0, 1.0, 1.0)


def test_a_side_without_values_has_no_shift() -> None:
    assert shift([np.full(50, np.nan)], [np.full(50, 1.0)]) is None


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.5, 2.0))
def test_shift_is_antisymmetric(seed: int, factor: float) -> None:
    a, b = autocorrelated(seed), autocorrelated(seed + 1) * factor
    there, back = shift([a], [b]), shift([b], [a])
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert back.high is not None
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.low * back.high == pytest.approx(1.0)
    assert there.p == pytest.approx(back.p)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_the_interval_excludes_one_where_the_test_rejects(seed: int) -> None:
    random = np.random.default_rng(seed)
    found = shift([random.normal(1000, 10, 300)], [random.normal(1000 + random.uniform(-4, 4), 10, 300)])
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    if found.p < 0.04:
        assert not found.low <= 1 <= found.high
    if found.p > 0.06:
        assert found.low <= 1 <= found.high


def test_equal_servers_are_told_apart_at_about_the_nominal_rate() -> None:
    shown = 0
    for seed in range(300):
        found = shift([autocorrelated(2 * seed, rho=0.3)], [autocorrelated(2 * seed + 1, rho=0.3)])
        assert found is not None
        shown += found.shown
    assert 4 <= shown <= 30  # 15 expected


def test_holm_by_hand() -> None:
    # Ordered .01 .02 .04 .05: times 4, 3, 2, 1 gives .04 .06 .08 .05, never below the one before.
    assert holm([0.04, 0.01, 0.05, 0.02]) == pytest.approx([0.08, 0.04, 0.08, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_with_weights_by_hand() -> None:
    # Weights 1 and 1/3 thrice: .03 / 1 * 2 = .06; then .03 / (1/3) * 1 = .09 and .6 / (1/3) * (2/3) = 1.2.
    assert holm([0.03, 0.03, 0.6, 0.6], [1, 1 / 3, 1 / 3, 1 / 3]) == pytest.approx([0.06, 0.09, 1.0, 1.0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_p_values_and_bonferroni(values: list[float]) -> None:
    found = holm(values)
    assert all(raw <= adjusted <= 1 for raw, adjusted in zip(values, found, strict=True))
    assert min(found) == pytest.approx(min(1.0, min(values) * len(values)))
    assert np.argsort(values, kind="stable").tolist() == sorted(
        range(len(values)), key=lambda i: (found[i], values[i], i)
    )


def test_the_smallest_p_is_that_of_two_separated_samples() -> None:
    for n in (3, 4, 8):
        found = change(np.arange(float(n)), 100 + np.arange(float(n)))
        assert found is not None
        assert found.p == pytest.approx(smallest_p(n, n))


def test_four_runs_differ_from_four_by_hand() -> None:
    found = change(np.array([1.0, 2, 3, 4]), np.array([11.0, 12, 13, 24]))
    assert found is not None
    assert (found.a.value, found.b.value, found.difference.value) == (2.5, 12.5, 10.0)
    assert found.relative is not None
    assert found.relative.value == pytest.approx(5.0)  # of the 16 ratios the middle two are 6
    assert found.separation == 7.0
    assert found.units == (4, 4)
    assert found.difference.excludes_zero


def test_a_change_downwards_is_separated_on_its_own_side() -> None:
    below, overlapping = (change(np.array([5.0, 6, 7, 8]), np.array(b)) for b in ([1.0, 2, 3, 4], [1.0, 2, 3, 5.5]))
    assert below is not None
    assert overlapping is not None
    assert below.separation == 1.0
    assert overlapping.separation == -0.5


def test_three_runs_have_no_interval_and_zero_has_no_relative_change() -> None:
    few = change(np.array([1.0, 2, 3]), np.array([4.0, 5, 6]))
    assert few is not None
    assert (few.difference.low, few.difference.high, few.difference.n) == (None, None, 3)
    assert not few.difference.excludes_zero
    none = change(np.zeros(4), np.ones(4))
    assert none is not None
    assert none.relative is None
    assert change(np.full(4, np.nan), np.ones(4)) is None


def test_no_outlier_is_removed() -> None:
    calm, disturbed = (change(np.arange(8.0), np.array([*range(10, 17), last])) for last in (17.0, 1000.0))
    assert calm is not None
    assert disturbed is not None
    assert disturbed.difference.high is not None
    assert calm.difference.high is not None
    assert disturbed.difference.high > calm.difference.high
    assert disturbed.difference.value == pytest.approx(calm.difference.value, abs=1)


@pytest.mark.parametrize(("runs", "least"), [(4, 88), (12, 90)])
def test_the_bootstrap_interval_covers_the_difference(runs: int, least: int) -> None:
    hits = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        found = change(random.normal(100, 1, runs), random.normal(100.5, 1, runs)).difference  # type: ignore[union-attr]
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.5 <= found.high
    assert least <= hits < 100  # 95 expected


def test_a_run_is_drawn_whole_and_the_same_way_each_time() -> None:
    drawn = resampled(np.array([1.0, 2.0, 4.0]), 0)
    assert set(np.unique(drawn)) == {1.0, 2.0, 4.0}
    assert (drawn == resampled(np.array([1.0, 2.0, 4.0]), 0)).all()
    assert (drawn != resampled(np.array([1.0, 2.0, 4.0]), 1)).any()
    assert estimate(1.0, drawn[:, 0], 8).low == 1.0


def in_rounds(a: list[list[float]], b: list[float]) -> Change:
    found = change(np.array(a), np.array(b))
    assert found is not None
    return found


def test_two_rounds_by_hand() -> None:
    # Differences from the means of stock's two: 2 and 4; with their mean 3 the median is 3. The run of b is the
    # largest of three in both rounds: 1/9, and as much on the other side.
    found = in_rounds([[1.0, 10.0], [3.0, 12.0]], [4.0, 15.0])
    assert found.difference.value == 3.0
    assert found.p == pytest.approx(2 / 9) == pytest.approx(found.least_p)
    assert (found.rounds, found.units, found.separation) == (2, (4, 2), 4.0 - 12.0)


def test_the_ranks_of_three_rounds_by_hand() -> None:
    # Ranks 3, 3 and 2 of 3: a deviation of 2 of 3. Of 27 outcomes 1 has +3 and 3 have +2, and as many below.
    found = in_rounds([[1.0, 1.0, 1.0], [2.0, 2.0, 3.0]], [5.0, 5.0, 2.0])
    assert found.p == pytest.approx(8 / 27)


def test_ties_in_a_round_are_no_evidence() -> None:
    assert in_rounds([[1.0, 2.0, 3.0]], [1.0, 2.0, 3.0]).p == 1.0
    assert in_rounds([[1.0, 2.0, 3.0]], [1.0, 2.0, 4.0]).p == 1.0  # one round of two says nothing


def test_what_a_round_shares_cancels() -> None:
    shared = np.array([1.0, 50.0, 3.0, 20.0, 7.0, 90.0, 2.0, 11.0])
    found = change(np.vstack([shared, shared * 1.001]), shared * 1.1)
    assert found is not None
    assert found.relative is not None
    assert found.relative.low is not None
    assert found.relative.high is not None
    assert 0.09 < found.relative.low < found.relative.high < 0.11
    assert found.p == pytest.approx(2 / 3**8)
    apart = change(shared, shared * 1.1)
    assert apart is not None
    assert apart.p > 0.5


def test_a_round_that_lacks_a_run_does_not_count() -> None:
    found = in_rounds([[1.0, np.nan, 1.0], [2.0, 2.0, 3.0]], [5.0, 5.0, 2.0])
    assert found.rounds == 2
    assert change(np.array([[np.nan]]), np.array([1.0])) is None


@pytest.mark.parametrize("rounds", [6, 10])
def test_equal_arms_in_rounds_differ_at_most_at_the_nominal_rate(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resample_less(monkeypatch)
    low = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        shared = np.exp(np.cumsum(random.normal(0, 0.3, rounds)))
        arms = shared * np.exp(random.normal(0, 0.05, (3, rounds)))
        low += in_rounds(arms[:2].tolist(), arms[2].tolist()).p < 0.05
    assert 1 <= low <= 18  # at most 10 expected


@pytest.mark.parametrize("rounds", [5, 8])
def test_the_interval_of_rounds_covers_the_ratio(rounds: int) -> None:
    hits = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        shared = np.exp(np.cumsum(random.normal(0, 0.3, rounds)))
        arms = shared * np.exp(random.normal(0, 0.05, (3, rounds)))
        found = in_rounds(arms[:2].tolist(), (0.9 * arms[2]).tolist()).relative
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= -0.1 <= found.high
    assert 89 <= hits < 100  # 95 expected
