"""Which requests are in flight, which pages they hold, and what a step gave them: plain Python on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.settings import Settings
from spantrace.errors import SpantraceError


@dataclass
class Request:
    """A prompt and the tokens produced so far, at most `max_tokens`.

    `steps` counts the cycles that verified it, the first of them without drafts; `drafting`: later ones have some.
    """

    index: int
    prompt: list[int]
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    row: int = -1
    slot: int = -1
    steps: int = 0
    drafting: bool = False

    @property
    def cached(self) -> int:
        """Tokens in the target's caches: all but the newest."""
        return len(self.prompt) + max(len(self.tokens) - 1, 0)

    @property
    def done(self) -> bool:
        """Whether all its tokens are produced."""
        return len(self.tokens) >= self.max_tokens


@dataclass(frozen=True)
class Plan:
    """What one step does: the requests it admits and has to prefill, all requests it verifies, and their tokens."""

    step: int
    admitted: list[Request]
    running: list[Request]
    scheduled_tokens: int


@dataclass(frozen=True)
class Progress:
    """What one step gave: new tokens by request index, (drafted, accepted) of each drafting request, who finished.

    `prefilled` of its requests were new: a step without any only decoded.
    """

    step: int
    tokens: dict[int, list[int]]
    acceptance: list[tuple[int, int]]
    finished: list[Request]
    prefilled: int


class Scheduler:
    """First come, first served; a request is admitted once every page that it can ever need is free."""

    def __init__(self, settings: Settings, batch: Batch) -> None:
        self._settings, self._batch = settings, batch
        self._waiting: deque[Request] = deque()
        self._rows: list[Request | None] = [None] * settings.batch
        # The last slot goes first, so that a row is never its slot's number by accident.
        self._free_slots = list(range(settings.batch))
        self._free_pages = list(range(settings.page_count - 1, 0, -1))
        self._promised = 0
        self._step = 0

    def add(self, request: Request) -> None:
        """Queue a request; SpantraceError where it could never run."""
        tokens, most = len(request.prompt) + request.max_tokens, self._settings.context
        if not request.prompt or request.max_tokens < 1:
            raise SpantraceError("a request needs a prompt of at least one token and room for at least one more")
        if tokens > most:
            raise SpantraceError(f"prompt and output take {tokens} tokens; the context holds {most}")
        if self._most_pages(request) >= self._settings.page_count:
            have = self._settings.page_count - 1
            raise SpantraceError(f"a request needs {self._most_pages(request)} pages; the pool has {have}")
        self._waiting.append(request)

    def idle(self) -> bool:
        """Whether nothing is running or waiting."""
        return not self._waiting and not any(self._rows)

    def running(self) -> Iterator[Request]:
        """The requests in flight, by row."""
        return (request for request in self._rows if request is not None)

    def schedule(self) -> Plan:
        """Admit what fits, and give every request the pages that this step's rows and block may touch."""
        admitted = list(self._admit())
        running = list(self.running())
        for request in running:
            self._grow(request)
        tokens = sum(len(request.prompt) for request in admitted) + len(running) * (1 + self._settings.speculative)
        self._step += 1
        return Plan(self._step, admitted, running, tokens)

    def update(self, plan: Plan, accepted: list[list[int]]) -> Progress:
        """Hand out the accepted tokens, a list per row, and let go of the requests that are done."""
        tokens, acceptance, finished = {}, [], []
        for request in plan.running:
            new = accepted[request.row]
            if request.steps and request.drafting:
                acceptance.append((self._settings.speculative, len(new) - 1))
            request.steps += 1
            tokens[request.index] = new[: request.max_tokens - len(request.tokens)]
            request.tokens += tokens[request.index]
            if request.done:
                finished.append(request)
                self._release(request)
        return Progress(plan.step, tokens, acceptance, finished, len(plan.admitted))

    def abort(self) -> None:
        """Let go of every request in flight, whatever it has produced."""
        for request in list(self.running()):
            self._release(request)

    def _admit(self) -> Iterator[Request]:
        while self._waiting and None in self._rows:
            need = self._most_pages(self._waiting[0])
            if self._promised + need >= self._settings.page_count:
                return
            request = self._waiting.popleft()
            self._promised += need
            request.row, request.slot = self._rows.index(None), self._free_slots.pop()
            self._rows[request.row] = request
            yield request

    def _grow(self, request: Request) -> None:
        have = len(request.pages)
        missing = self._pages_for(request.cached + self._settings.lookahead) - have
        if missing > 0:
            request.pages += [self._free_pages.pop() for _ in range(missing)]
            self._batch.give_pages(request.row, have, request.pages[have:])

    def _release(self, request: Request) -> None:
        self._promised -= self._most_pages(request)
        self._free_pages += request.pages
        self._free_slots.append(request.slot)
        self._rows[request.row] = None
        self._batch.clear(request.row)

    def _most_pages(self, request: Request) -> int:
        return self._pages_for(len(request.prompt) + request.max_tokens + self._settings.lookahead)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._settings.page_size)
