"""Measurements that need cores of their own: made again where they fail, and skipped where the cores are not free."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import pytest

ATTEMPTS = 3
QUIET = 25
"""Preemptions a second with which a machine still counts as quiet."""


def in_quiet(measure: Callable[[], str]) -> None:
    """Fail with what `measure()` complains of each time that it is called; nothing is fine.

    Skips where the machine has so much other work that this thread was preempted all the time: then every microsecond
    of work costs more than one.
    """
    before, began = _preempted(), time.monotonic()
    for _ in range(ATTEMPTS):
        if not (complaint := measure()):
            return
    rate = (_preempted() - before) / (time.monotonic() - began)
    if rate > QUIET:
        pytest.skip(f"the cores of this machine are not free: preempted {rate:.0f} times a second")
    pytest.fail(f"{complaint}; preempted {rate:.0f} times a second")


def _preempted() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
