"""Medians, their intervals, and the comparison of two series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.statistics import Floats, block_medians, cost, median_estimate, shift


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
