"""The speculative-decode cycle: `Cycle.step` is the whole of it, and its calls are the spans that spantrace names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from optimized.reference_cycle.acceptance import Continuation, Forced, Proposals, Verdict, Verifier, histogram
from optimized.reference_cycle.batch import Batch, Readback
from optimized.reference_cycle.comparison import DraftLog
from optimized.reference_cycle.dflash import DFlashDrafter
from optimized.reference_cycle.drafter import Draft, Drafter
from optimized.reference_cycle.dspark import DSparkDrafter
from optimized.reference_cycle.eagle import EagleDrafter
from optimized.reference_cycle.scheduler import Progress, Request, Scheduler
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target, TargetOutput

DRAFTERS: dict[str, Callable[[Settings, Target, Batch], Drafter]] = {
    "dflash": DFlashDrafter,
    "dspark": DSparkDrafter,
    "eagle": EagleDrafter,
}


class Cycle:
    """A target, its drafter if any, and the requests between them; `draft_log` collects drafts where one is given.

    `source` tells where the tokens to verify come from; None means from the drafter.
    """

    def __init__(
        self, settings: Settings, source: Continuation | Forced | None = None, draft_log: DraftLog | None = None
    ) -> None:
        self.settings = settings
        self.batch = Batch(settings)
        self.scheduler = Scheduler(settings, self.batch)
        self.target = Target(settings)
        self.verifier = Verifier()
        self.proposals = Proposals(settings, source)
        kind = DRAFTERS.get(settings.drafter)
        self.drafter = kind(settings, self.target, self.batch) if kind else None
        self.readback = Readback(settings)
        self.draft_log = draft_log
        self.draft: Draft | None = None
        self._added = count()

    def step(self) -> Progress:
        """One cycle: verify the drafts of the cycle before, keep what stands, draft what comes next."""
        plan = self.scheduler.schedule()
        self.prefill(plan.admitted)
        self.target.input_prep(self.batch)
        self.target.metadata(self.batch)
        output = self.target.forward()
        self.observe(output)
        verdict = self.verifier.sample(output.logits, self.batch.drafts)
        self.postprocess(output, verdict)
        self.propose(verdict)
        accepted = self.wait()
        progress = self.scheduler.update(plan, accepted)
        self.emit(progress)
        return progress

    def prefill(self, admitted: Sequence[Request]) -> None:
        """Run new requests' prompts through the target and tell the drafter; in a steady cycle there are none."""
        for request in admitted:
            first, taps = self.target.prefill(request.prompt, request.slot, request.pages)
            request.tokens.append(first)
            self.batch.place(request.row, request.slot, len(request.prompt), first)
            self.proposals.admit(request.index, request.slot)
            follows = self.drafter is not None and self.drafter.admit(
                request.row, request.slot, taps, [*request.prompt[1:], first]
            )
            request.drafting = follows or (self.drafter is not None and not self.proposals.from_drafter)

    def observe(self, output: TargetOutput) -> None:
        """Show the drafter what the target saw, before it is known what stands of it."""
        if self.drafter:
            self.drafter.observe(output.taps)

    def postprocess(self, output: TargetOutput, verdict: Verdict) -> None:
        """Commit what was accepted, and start the copy that brings it to the host."""
        self.readback.start(verdict.accepted, verdict.counts)
        counts = verdict.counts.long()
        self.target.commit_states(output.states, self.batch.slots, counts)
        self.batch.advance(counts, verdict.newest)
        if (drafts := self.proposals.next(counts, self.batch.slots)) is not None:
            self.batch.drafts.copy_(drafts)

    def propose(self, verdict: Verdict) -> None:
        """Draft, and verify the draft in the next cycle unless the tokens to verify come from elsewhere."""
        if self.drafter:
            self.draft = self.drafter.propose(verdict)
            if self.proposals.from_drafter:
                self.batch.drafts.copy_(self.draft.tokens)

    def wait(self) -> list[list[int]]:
        """Wait until the accepted tokens are on the host: a list per batch row."""
        return self.readback.wait()

    def emit(self, progress: Progress) -> None:
        """Give the step's results away; here, to the log of drafts."""
        if self.draft_log is not None and self.draft is not None:
            self.draft_log.keep(list(self.scheduler.running()), self.draft)

    def add(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Request]:
        """Queue a request for each prompt; their indices count on from those added before."""
        requests = [Request(next(self._added), list(prompt), max_tokens) for prompt in prompts]
        for request in requests:
            self.scheduler.add(request)
        return requests

    def restart(self) -> None:
        """Let go of all requests and number the next ones from 0 again: equal ones then get equal proposals."""
        self.scheduler.abort()
        self._added = count()

    def verify_from(self, source: Continuation | Forced | None) -> None:
        """Take the tokens to verify from `source`, None being the drafter, for requests that are added from now on."""
        self.proposals = Proposals(self.settings, source)

    def forget_graphs(self) -> None:
        """Capture CUDA graphs anew, as is needed after a method was replaced."""
        self.target.forget_graphs()
        if self.drafter:
            self.drafter.forget_graphs()


@dataclass(frozen=True)
class Generation:
    """The tokens of each request, the (drafted, accepted) pairs of all cycles, and the number of cycles."""

    tokens: list[list[int]]
    acceptance: list[tuple[int, int]]
    cycles: int

    def histogram(self, draft_length: int) -> list[int]:
        """How often 0..K drafts were accepted."""
        return histogram(self.acceptance, draft_length)


def generate(cycle: Cycle, prompts: Sequence[Sequence[int]], max_tokens: int) -> Generation:
    """Run a fresh cycle until every prompt has `max_tokens` tokens."""
    requests = cycle.add(prompts, max_tokens)
    acceptance: list[tuple[int, int]] = []
    cycles = 0
    while not cycle.scheduler.idle():
        acceptance += cycle.step().acceptance
        cycles += 1
    return Generation([request.tokens for request in requests], acceptance, cycles)


def autoregressive(settings: Settings, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """What the target produces on its own, one token a cycle: the standard for every drafter, and its continuation."""
    return generate(Cycle(settings.without_drafter()), prompts, max_tokens).tokens


def random_prompts(settings: Settings, count: int, length: int) -> list[list[int]]:
    """Seeded prompts of `length` tokens."""
    random = Random(settings.seed)
    return [[random.randrange(settings.geometry.vocab) for _ in range(length)] for _ in range(count)]
