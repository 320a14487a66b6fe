"""Measurements that other work on the machine can blur: made again, and skipped only where they tell nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

ATTEMPTS = 3


class Blurred(Exception):
    """What was measured is too uncertain to be right or wrong."""


def judged(measure: Callable[[], str]) -> None:
    """Call `measure`, which says what is wrong, until nothing is; fail where it says so twice in three times.

    It raises `Blurred` where its own intervals are too wide to judge by.
    """
    complaints, blurs = [], []
    for _ in range(ATTEMPTS):
        try:
            complaint = measure()
        except Blurred as blurred:
            blurs.append(str(blurred))
            continue
        if not complaint:
            return
        complaints.append(complaint)
    if len(complaints) > 1:
        pytest.fail(complaints[-1])
    pytest.skip(f"this machine has too much other work to measure on: {blurs[-1]}")
