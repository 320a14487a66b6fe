"""Which cycles are recorded in detail: runs of some, as the GPU may work on one while the host is in the next.

In a cycle in detail every hook is in force. In the others only those are that number, count and time the cycle: its
period, its step and what it accepted are known of every cycle, its spans of those in detail.
"""

from __future__ import annotations

RUN = 8
"""Cycles of one run; its first and last have neighbours that are not in detail, so that their spans are not used."""
EVERY = 5
"""Of so many runs one is in detail, where enough cycles are recorded."""
ENOUGH = 100
"""Cycles in detail that a recording is to have."""


def in_detail(step: int, every: int) -> bool:
    """Whether a step is in detail by its number: of the runs that begin with number 0 each `every`-th is."""
    return step // RUN % every == 0


def next_detail(step: int, every: int) -> int:
    """The next number, from `step` on, with which a run in detail begins: that of a recording's first step."""
    return -(-step // (RUN * every)) * RUN * every


def every_for(cycles: int | None) -> int:
    """Of how many runs one is to be in detail where so many cycles are recorded, None where nobody knows yet."""
    return EVERY if cycles is None else max(1, min(EVERY, cycles // ENOUGH))
