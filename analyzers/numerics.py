"""Whether a server answers the same with an optimization as without it: equal tokens, or a difference within noise.

Two runs of equal code may differ where two tokens are nearly as likely. So the first token that differs is judged by
how far the log-probabilities behind it lie apart, against how far those of stock lie apart in two of its own runs.
What comes after it has another context and says nothing. None of it counts where a model that is broken on purpose
gives equal answers too, or others that lie no further apart than stock's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations, islice
from math import inf, isfinite


@dataclass(frozen=True)
class Answer:
    """The tokens of an answer, and behind each the log-probabilities of the likeliest, by token."""

    tokens: tuple[int, ...]
    top: tuple[Mapping[int, float], ...]


Run = Sequence[Answer]
"""The answers to all prompts, in their order."""


class Outcome(Enum):
    """What a probe says."""

    PASS = "pass"
    FAIL = "fail"
    VOID = "void"


@dataclass(frozen=True)
class Difference:
    """The first token in which an answer differs: in which run, prompt and token (from 0), and the gap behind it."""

    run: int
    prompt: int
    token: int
    gap: float


@dataclass(frozen=True)
class Probed:
    """What became of a probe of `answers` answers, and why; `noise` is the largest gap between two runs of stock."""

    outcome: Outcome
    why: str
    answers: int
    differences: tuple[Difference, ...]
    noise: float


def judge(stock: Sequence[Run], treated: Sequence[Run], zeroed: Run, hits: int) -> Probed:
    """Judge runs with an optimization, which took `hits` calls, against stock's; `zeroed` is of the broken model."""
    noise, found, broken = noise_of(stock), differences(stock, treated), differences(stock[:1], [zeroed])
    worst = max((one.gap for one in found), default=0.0)
    if not broken:
        outcome, why = Outcome.VOID, "a zeroed attention layer does not show in the tokens, so that nothing else would"
    elif all(one.gap <= noise for one in broken):
        outcome, why = Outcome.VOID, "two runs of stock lie as far apart as a zeroed attention layer puts them"
    elif not hits:
        outcome, why = Outcome.VOID, "it never fired"
    elif not found:
        outcome, why = Outcome.PASS, "all tokens are equal"
    elif worst <= noise:
        outcome, why = Outcome.PASS, "where tokens differ, two runs of stock differ as much"
    else:
        outcome, why = Outcome.FAIL, "tokens differ by more than two runs of stock do"
    return Probed(outcome, why, sum(map(len, treated)), found, noise)


def differences(runs: Sequence[Run], others: Sequence[Run]) -> tuple[Difference, ...]:
    """The first token that differs of each answer in which one does."""
    return tuple(
        Difference(run, prompt, token, _gap_at(one, other, token))
        for run, pair in enumerate(zip(runs, others, strict=True))
        for prompt, (one, other) in enumerate(zip(*pair, strict=True))
        if (token := first_difference(one, other)) is not None
    )


def first_difference(one: Answer, other: Answer) -> int | None:
    """The place of the first token that is not the same, None where all are."""
    pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
    shorter = min(len(one.tokens), len(other.tokens))
    end = shorter if len(one.tokens) != len(other.tokens) else None
    return next((place for place, (mine, its) in pairs if mine != its), end)


def noise_of(stock: Sequence[Run]) -> float:
    """The largest gap between two runs of equal code, as far as their contexts are equal."""
    pairs = [pair for first, second in combinations(stock, 2) for pair in zip(first, second, strict=True)]
    return max((gap for pair in pairs for gap in _gaps(*pair)), default=0.0)


def _gaps(one: Answer, other: Answer) -> list[float]:
    end = first_difference(one, other)
    pairs = zip(one.top, other.top, strict=False)
    return [gap(*pair) for pair in (pairs if end is None else islice(pairs, end + 1))]


def _gap_at(one: Answer, other: Answer, token: int) -> float:
    known = token < min(len(one.top), len(other.top))
    return gap(one.top[token], other.top[token]) if known else inf


def gap(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """How far two sets of log-probabilities lie apart at most, of the tokens that are in both; infinite without any."""
    both = [(one[token], other[token]) for token in one.keys() & other.keys()]
    apart = [abs(mine - its) for mine, its in both if isfinite(mine) and isfinite(its)]
    lopsided = any(isfinite(mine) != isfinite(its) for mine, its in both)
    return inf if lopsided or not apart else max(apart)
