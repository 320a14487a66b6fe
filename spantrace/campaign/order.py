"""In which order the arms of a campaign take their turns, so that a drift falls on all of them alike."""

from __future__ import annotations

from spantrace.errors import SpantraceError

ABBA, LATIN = "abba", "latin"
ORDERS = (ABBA, LATIN)
MOST_REPEATS = 10_000
LEAST_CYCLES, MOST_CYCLES = 2, 10**9
"""Of a window: a cycle's period needs another cycle behind it."""


def turns(arms: int, repeats: int, order: str) -> list[int]:
    """The arms 0..arms-1 in turn, each `repeats` times; SpantraceError where the repeats do not balance.

    ABBA goes through the arms forwards and backwards in turn, so that a steady drift cancels. The Latin square puts
    each arm equally often into each place and behind each other arm (Williams, Experimental designs balanced for the
    estimation of residual effects of treatments, 1949).
    """
    rows = [list(range(arms)), list(reversed(range(arms)))] if order == ABBA else _williams(arms)
    if repeats % len(rows):
        name = "ABBA" if order == ABBA else f"a balanced Latin square of {arms} arms"
        raise SpantraceError(f"{name} takes a multiple of {len(rows)} repeats, not {repeats}")
    return [arm for repeat in range(repeats) for arm in rows[repeat % len(rows)]]


def _williams(arms: int) -> list[list[int]]:
    """Rows in which each arm follows each other one equally often: as many as arms, or twice that for an odd number."""
    first = [(index + 1) // 2 if index % 2 else -(index // 2) for index in range(arms)]
    square = [[(arm + shift) % arms for arm in first] for shift in range(arms)]
    return square if arms % 2 == 0 else square + [list(reversed(row)) for row in square]
