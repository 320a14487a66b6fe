"""Greedy verification, and where the tokens to verify come from: the drafter, or the target's own continuation.

A random drafter guesses nothing right. So that acceptance varies as in life, what is verified can instead be the
continuation that the target is known to produce, corrupted at a seeded rate or at a chosen position; the drafter
runs all the same, and its tokens are compared, not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import torch
from torch import Tensor

from optimized.reference_cycle.settings import Settings
from spantrace.errors import SpantraceError

GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Verdict:
    """accepted int32 [B, K + 1]: the target's own tokens, of which the first counts int32 [B] (1..K + 1) stand.

    newest int64 [B] is the last of those, each request's.
    """

    accepted: Tensor
    counts: Tensor
    newest: Tensor


class Verifier:
    """Compares drafts with what the target says."""

    def sample(self, logits: Tensor, drafts: Tensor) -> Verdict:
        """Greedy verdict on drafts int64 [B, K] by logits [B, rows, vocab], rows > K; row j speaks after draft j."""
        return self.accept(logits, drafts)

    def accept(self, logits: Tensor, drafts: Tensor) -> Verdict:
        """The drafts that equal the target's tokens from the first on stand, and one token of the target after them.

        The target's token is the most likely one: of equals the first, and the first that is not a number before any.
        """
        said = logits[:, : drafts.shape[1] + 1].argmax(dim=-1)
        right = (drafts == said[:, :-1]).long().cumprod(dim=1)
        last = right.sum(dim=1)
        return Verdict(said.int(), (last + 1).int(), said.gather(1, last.unsqueeze(1)).squeeze(1))


def histogram(acceptance: Sequence[tuple[int, int]], draft_length: int) -> list[int]:
    """How often 0..K drafts were accepted, from (drafted, accepted) pairs."""
    bins = [0] * (draft_length + 1)
    for _, accepted in acceptance:
        bins[accepted] += 1
    return bins


@dataclass(frozen=True)
class Continuation:
    """Verify the target's continuation with each position wrong at probability `error_rate`, whoever asks and when.

    `tokens[i mod n]` is what the target produces for request i; past its end nothing is proposed.
    """

    tokens: Sequence[Sequence[int]]
    error_rate: float = 0.25

    def __post_init__(self) -> None:
        if not 0.0 <= self.error_rate <= 1.0:
            raise SpantraceError(f"the error rate must lie in 0..1, not {self.error_rate}")


@dataclass(frozen=True)
class Forced:
    """Verify the target's continuation with one token wrong: lengths[s mod n] drafts stand in a request's step s.

    Request i starts at lengths[i mod n], so that the requests of a batch differ.
    """

    tokens: Sequence[Sequence[int]]
    lengths: Sequence[int]


def lengths_at(rates: Sequence[float], seed: int, count: int = 1000) -> list[int]:
    """Lengths for `Forced` at which the share rates[j] of them, in any stretch of them, reaches past draft j.

    Multiples of the golden ratio spread evenly however few are taken; the seed tells where they start.
    """
    if any(later > rate for rate, later in pairwise(rates)):
        raise SpantraceError(f"acceptance cannot grow from one position to the next: {', '.join(map(str, rates))}")
    start = Random(seed).random()
    points = ((start + index * GOLDEN) % 1.0 for index in range(count))
    return [sum(rate > point for rate in rates) for point in points]


class Proposals:
    """The tokens to verify next, where they are not the drafter's; its tables int64 [B + 1, ...] live on the device."""

    def __init__(self, settings: Settings, source: Continuation | Forced | None = None) -> None:
        if isinstance(source, Forced) and not all(0 <= n <= settings.speculative for n in source.lengths):
            raise SpantraceError(f"forced lengths must lie in 0..{settings.speculative}")
        self._source, self._settings = source, settings
        length = settings.context + settings.lookahead
        self._known = torch.full((settings.batch + 1, length), -1, dtype=torch.int64, device=settings.device)
        self._produced = torch.zeros(settings.batch + 1, dtype=torch.int64, device=settings.device)
        self._steps = torch.zeros_like(self._produced)
        self._ahead = torch.arange(settings.speculative, device=settings.device)
        if isinstance(source, Forced):
            self._lengths = torch.tensor(source.lengths, device=settings.device)

    @property
    def from_drafter(self) -> bool:
        """Whether the drafter's own tokens are verified."""
        return self._source is None

    def admit(self, index: int, slot: int) -> None:
        """Load the continuation of request `index`, of which the first token is produced."""
        if self._source is None:
            return
        tokens = list(self._source.tokens[index % len(self._source.tokens)])[: self._known.shape[1]]
        if isinstance(self._source, Continuation):
            tokens = self._corrupted(tokens, index, self._source.error_rate)
        else:
            self._steps[slot].fill_(index)
        self._known[slot].fill_(-1)
        self._known[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        self._produced[slot].fill_(1)

    def next(self, counts: Tensor, slots: Tensor) -> Tensor | None:
        """Tokens to verify after counts [B] more were accepted, int64 [B, K]; None where the drafter's own are."""
        if self._source is None:
            return None
        self._produced[slots] += counts
        columns = (self._produced[slots].unsqueeze(1) + self._ahead).clamp(max=self._known.shape[1] - 1)
        tokens = self._known[slots].gather(1, columns)
        if isinstance(self._source, Forced):
            wrong = self._lengths[self._steps[slots] % len(self._lengths)]
            tokens = torch.where(self._ahead == wrong.unsqueeze(1), self._other(tokens), tokens)
            self._steps[slots] += 1
        return tokens

    def _corrupted(self, tokens: list[int], index: int, rate: float) -> list[int]:
        random = Random(f"{self._settings.seed}/{index}")
        words = self._settings.geometry.vocab
        return [(t + random.randrange(1, words)) % words if random.random() < rate else t for t in tokens]

    def _other(self, tokens: Tensor) -> Tensor:
        return torch.where(tokens < 0, tokens, (tokens + 1) % self._settings.geometry.vocab)
