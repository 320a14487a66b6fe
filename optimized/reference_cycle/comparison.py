"""Drafts kept per cycle, and compared between two runs: lossless verification hides a broken drafter, this does not."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from optimized.reference_cycle.drafter import Draft
from optimized.reference_cycle.scheduler import Request

Place = tuple[int, int]
"""A request's index and the length of its accepted prefix: what a drafter may know is the same in every run."""


@dataclass
class DraftLog:
    """What the drafter said at each place: tokens [K] and float32 logits [K, vocab], on the host."""

    drafts: dict[Place, Draft] = field(default_factory=dict)

    def keep(self, requests: list[Request], draft: Draft) -> None:
        """Copy the rows of `requests`, which hold their newest tokens already; waits for the GPU."""
        tokens, logits = draft.tokens.cpu(), draft.logits.float().cpu()
        for request in requests:
            place = request.index, len(request.prompt) + len(request.tokens)
            self.drafts[place] = Draft(tokens[request.row].clone(), logits[request.row].clone())


@dataclass(frozen=True)
class Comparison:
    """Over the `places` that both runs drafted at: how many drafts differ, and the largest difference of a logit.

    `worst` is the place of that difference, None where nothing was compared.
    """

    places: int
    different: int
    largest: float
    worst: Place | None

    def agrees(self, tolerance: float = 0.0) -> bool:
        """Whether something was compared, all tokens are equal and no logit differs by more than `tolerance`."""
        return self.places > 0 and self.different == 0 and self.largest <= tolerance


def compare_drafts(first: DraftLog, second: DraftLog) -> Comparison:
    """Compare two runs of the same requests on every accepted prefix that both drafted after."""
    shared = sorted(first.drafts.keys() & second.drafts.keys())
    pairs = [(place, first.drafts[place], second.drafts[place]) for place in shared]
    different = sum(not bool((a.tokens == b.tokens).all()) for _, a, b in pairs)
    distances = [(_distance(a.logits, b.logits), place) for place, a, b in pairs]
    largest, worst = max(distances, default=(0.0, None))
    return Comparison(len(shared), different, largest, worst)


def _distance(first: Tensor, second: Tensor) -> float:
    """The largest difference, infinity where a number is not finite in one of the two only."""
    difference = (first - second).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    return float(difference.masked_fill(first == second, 0.0).max())
