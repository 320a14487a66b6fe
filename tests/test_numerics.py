"""Whether answers with and without an optimization are judged alike."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from analyzers.numerics import Answer, Outcome, first_difference, gap, judge, noise_of

TOP = {7: -0.5, 8: -1.0, 9: -3.0}


def answer(tokens: str, *, shift: float = 0.0, at: int = 0) -> Answer:
    """An answer whose log-probabilities are moved at one of its tokens."""
    moved = {token: value + shift for token, value in TOP.items()}
    return Answer(tuple(map(ord, tokens)), tuple(moved if place == at else TOP for place in range(len(tokens))))


SAME = answer("abcdef")
BROKEN = answer("xyz123", shift=1.0)


def test_equal_tokens_pass() -> None:
    found = judge([[SAME], [SAME]], [[SAME], [SAME]], [BROKEN], hits=3)
    assert (found.outcome, found.answers, found.differences, found.noise) == (Outcome.PASS, 2, (), 0.0)


def test_a_difference_passes_only_where_two_runs_of_stock_are_as_far_apart() -> None:
    wrong = answer("abcXYZ", shift=0.2, at=3)
    quiet, noisy = [[SAME], [SAME]], [[SAME], [answer("abcdef", shift=0.3, at=5)]]
    failed = judge(quiet, [[SAME], [wrong]], [BROKEN], hits=3)
    assert failed.outcome is Outcome.FAIL
    ((run, prompt, token, apart),) = [(d.run, d.prompt, d.token, round(d.gap, 6)) for d in failed.differences]
    assert (run, prompt, token, apart) == (1, 0, 3, 0.2)
    passed = judge(noisy, [[SAME], [wrong]], [BROKEN], hits=3)
    assert (passed.outcome, round(passed.noise, 6), len(passed.differences)) == (Outcome.PASS, 0.3, 1)


def test_one_large_gap_fails_however_many_small_ones_there_are() -> None:
    noisy = [[SAME, SAME], [answer("abcdef", shift=0.3), SAME]]
    small, large = answer("abcXYZ", shift=0.2, at=3), answer("aXYZUV", shift=0.31, at=1)
    assert judge(noisy, [[small, small]] * 2, [BROKEN] * 2, hits=1).outcome is Outcome.PASS
    assert judge(noisy, [[small, small], [small, large]], [BROKEN] * 2, hits=1).outcome is Outcome.FAIL


def test_it_is_void_where_the_broken_model_says_the_same_or_nothing_fired() -> None:
    wrong = answer("abcXYZ", shift=0.2, at=3)
    for treated in (SAME, wrong):
        assert judge([[SAME]] * 2, [[treated]] * 2, [SAME], hits=3).outcome is Outcome.VOID
        assert judge([[SAME]] * 2, [[treated]] * 2, [BROKEN], hits=0).outcome is Outcome.VOID


def test_it_is_void_where_stock_is_as_far_from_itself_as_from_the_broken_model() -> None:
    noisy = [[SAME], [answer("aXYZUV", shift=1.0, at=1)]]
    assert judge(noisy, [[SAME]] * 2, [BROKEN], hits=3).outcome is Outcome.VOID
    assert judge(noisy, [[SAME]] * 2, [answer("xyz123", shift=1.1)], hits=3).outcome is Outcome.PASS


def test_noise_is_of_equal_contexts_only() -> None:
    apart = replace(answer("abXYZU"), top=(TOP, TOP, {7: -0.6, 8: -0.9}, {7: -90.0}, {7: -90.0}, {7: -90.0}))
    assert round(noise_of([[SAME], [apart]]), 6) == 0.1
    assert noise_of([[SAME]]) == 0.0


def test_answers_of_different_lengths_differ_where_the_shorter_one_ends() -> None:
    assert first_difference(answer("abc"), answer("abcd")) == 3
    found = judge([[SAME]], [[answer("abc")]], [BROKEN], hits=1)
    assert (found.outcome, found.differences[0].gap) == (Outcome.FAIL, inf)


def test_a_gap_is_the_largest_over_the_tokens_of_both() -> None:
    assert gap({1: -1.0, 2: -2.0, 3: -4.0}, {1: -1.5, 2: -2.25, 4: -9.0}) == 0.5
    assert gap({1: -1.0}, {2: -1.0}) == inf
    assert gap({1: -inf, 2: -1.0}, {1: -inf, 2: -1.0}) == 0.0
    assert gap({1: -inf, 2: -1.0}, {1: -5.0, 2: -1.0}) == inf
    assert gap({1: float("nan"), 2: -1.0}, {1: -5.0, 2: -1.0}) == inf
