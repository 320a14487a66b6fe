"""What becomes of a measurement that is made again where other work on the machine may have blurred it."""

from __future__ import annotations

import pytest
from quiet import Blurred, judged


def attempts(outcomes: str) -> list[str]:
    """Judge by attempts that hold (h), are wrong (w) or blurred (b) in turn; those that were not made are left."""
    left = list(outcomes)

    def measure() -> None:
        outcome = left.pop(0)
        assert outcome != "w", "too slow"
        if outcome == "b":
            raise Blurred("wide")

    judged(measure)
    return left


@pytest.mark.parametrize(("outcomes", "left"), [("hhh", "hh"), ("whh", "h"), ("bhh", "h"), ("wbh", ""), ("bwh", "")])
def test_an_attempt_that_holds_passes_with_one_wrong_one_before_it(outcomes: str, left: str) -> None:
    assert attempts(outcomes) == list(left)


@pytest.mark.parametrize("outcomes", ["wwh", "wbw", "bww"])
def test_two_wrong_attempts_fail_whatever_the_third_would_be(outcomes: str) -> None:
    with pytest.raises(AssertionError, match=r"too slow(?!; the others)"):
        attempts(outcomes)


@pytest.mark.parametrize("outcomes", ["wbbbb", "bwbbb"])
def test_a_wrong_attempt_is_not_hidden_by_blurred_ones(outcomes: str) -> None:
    with pytest.raises(AssertionError, match=r"(?s)one attempt was wrong: .*too slow.* blurred: wide(; wide){3}"):
        attempts(outcomes)


def test_two_blurred_attempts_skip() -> None:
    with pytest.raises(pytest.skip.Exception, match="too much other work to measure on: wide"):
        attempts("bbw")
