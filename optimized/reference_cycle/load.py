"""Requests for a cycle that is to be measured: a full batch in every cycle, and tokens that the target will accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optimized.reference_cycle.acceptance import Continuation
from optimized.reference_cycle.cycle import Cycle
from optimized.reference_cycle.scheduler import Progress
from optimized.reference_cycle.settings import Settings
from spantrace.errors import SpantraceError

LONGEST_OUTPUT = 256
"""Tokens of one request, unless its fewest cycles need more or half the context is less."""
FEWEST_CYCLES = 4
"""Cycles that a request must last for if every draft is accepted."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of a request's prompt and output, and how many must be known so that its last cycle has drafts too.

    The known ones fill the context behind the prompt.
    """

    prompt: int
    output: int
    known: int

    @classmethod
    def within(cls, settings: Settings) -> Lengths:
        """Lengths for these settings; SpantraceError where requests would end as soon as they began."""
        fewest = FEWEST_CYCLES * (settings.speculative + 1)
        if settings.context < 2 * fewest:
            what = f"K = {settings.speculative}" if settings.speculative else "a cycle without a drafter"
            raise SpantraceError(
                f"a context of {settings.context} is too small to measure {what}; {2 * fewest} or more are needed"
            )
        output = min(max(LONGEST_OUTPUT, fewest), settings.context // 2)
        known = output + settings.speculative
        return cls(settings.context - known, output, known)


class Load:
    """Requests in waves: as soon as one ends, the others are dropped and as many new ones begin together.

    So the batch is full in every cycle, and only the first one of a wave prefills.
    """

    def __init__(self, cycle: Cycle, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        self._cycle, self._prompts, self._max_tokens = cycle, prompts, max_tokens

    def step(self) -> Progress:
        """One cycle, the first one of a wave included."""
        if self._cycle.scheduler.idle():
            self._cycle.add(self._prompts, self._max_tokens)
        progress = self._cycle.step()
        if progress.finished:
            self._cycle.scheduler.abort()
        return progress


def own_continuation(
    cycle: Cycle, prompts: Sequence[Sequence[int]], length: int, progress: Callable[[int], None] = lambda tokens: None
) -> list[list[int]]:
    """`length` tokens that the cycle's own verifying pass produces after each prompt, with its drafter at rest.

    A pass over fewer rows would round otherwise, and in half precision soon produce another text.
    """
    drafter, proposals = cycle.drafter, cycle.proposals
    cycle.drafter = None
    cycle.verify_from(Continuation([[]]))
    requests = cycle.add(prompts, length)
    try:
        while not cycle.scheduler.idle():
            cycle.step()
            progress(len(requests[0].tokens))
    finally:
        cycle.scheduler.abort()
        cycle.drafter, cycle.proposals = drafter, proposals
    return [request.tokens for request in requests]
