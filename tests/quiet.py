"""Measurements that other work on the machine can blur: made again, and skipped only where they tell nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

ATTEMPTS = 5


class Blurred(Exception):
    """What was measured is too uncertain to be right or wrong."""


def judged(measure: Callable[[], None]) -> None:
    """Call `measure`, which asserts, up to five times: an attempt that holds passes, two wrong ones fail.

    It raises `Blurred` where its own intervals are too wide to judge by. Two of these skip the test; after a wrong
    attempt none does, and the test fails where no attempt holds.
    """
    wrong: list[AssertionError] = []
    blurs: list[Blurred] = []
    for _ in range(ATTEMPTS):
        try:
            return measure()
        except AssertionError as error:
            wrong.append(error)
        except Blurred as blurred:
            blurs.append(blurred)
        if len(wrong) > 1:
            raise wrong[-1]
        if len(blurs) > 1 and not wrong:
            break
    if wrong:
        blurred = "; ".join(map(str, blurs))
        raise AssertionError(f"one attempt was wrong: {wrong[0]}; the others were blurred: {blurred}") from wrong[0]
    pytest.skip(f"this machine has too much other work to measure on: {blurs[-1]}")
