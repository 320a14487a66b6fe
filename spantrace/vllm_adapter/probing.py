"""The runs of a numerics probe: what two live servers answer, the one with and without each optimization."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from analyzers.numerics import Answer
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.vllm_adapter import command_line
from spantrace.vllm_adapter.answers import answers
from spantrace.vllm_adapter.live import check, reset_prefix_cache, switch, switched_on
from spantrace.vllm_adapter.load import counters, served
from spantrace.vllm_adapter.random_weights import ZERO_ATTENTION
from spantrace.vllm_adapter.servers import Server, find
from spantrace.vllm_adapter.targets import port_of

IDS = range(10, 300)
"""What prompts are made of: token ids that every tokenizer has."""
_DRAFTS, _ACCEPTED = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True)
class Asked:
    """What a probe asks: `prompts` of so many tokens each, answers of so many, all of it `repeats` times."""

    prompts: int = 8
    prompt_tokens: int = 256
    tokens: int = 64
    repeats: int = 2

    def texts(self) -> list[list[int]]:
        """The prompts, the same in every probe, each of tokens of its own."""
        return [random.Random(number).choices(IDS, k=self.prompt_tokens) for number in range(self.prompts)]


@dataclass(frozen=True)
class Runs:
    """The answers of every run; accepted drafts per draft of all of them, None where nothing was drafted; hits."""

    answers: list[list[Answer]]
    accepted: float | None
    hits: int = 0


class Prober:
    """Asks the server that is named `target` in the socket directory `place`."""

    def __init__(self, target: str, place: Path, asked: Asked) -> None:
        self.server: Server = find(target, place)
        self._place, self._asked = place, asked
        self._url = f"http://127.0.0.1:{self.server.port() or port_of(target)}"
        self.name, self.model = served(self._url)

    def check(self, ids: Sequence[str]) -> None:
        """SpantraceError where its answers say nothing, or one of these cannot be switched on it."""
        if '"synthetic"' in command_line.speculation(self.server.command):
            raise SpantraceError(
                "the server accepts drafts whatever they are; start it with rejection_sample_method standard"
            )
        for one in ids:
            check(self.server, [one], [], self._place)

    def check_zeroed(self, whole: Prober) -> None:
        """SpantraceError where this one does not serve the other's model with an attention layer zeroed."""
        if ZERO_ATTENTION not in self.server.command:
            raise SpantraceError(
                f"process {self.server.root} is not the broken model; start it with --model-loader-extra-config "
                f"'{{\"{ZERO_ATTENTION}\": 0}}' and else like the other"
            )
        if self.model != whole.model:
            raise SpantraceError(f"the servers serve {whole.model} and {self.model}", EXIT_NOT_COMPARABLE)

    def runs(self, progress: Callable[[int], None], repeats: int | None = None) -> Runs:
        """All prompts, so many times; the first time nothing is cached, where that can be had."""
        reset_prefix_cache(self.server, self._place)
        before, found = self._counted(), []
        for _ in range(repeats or self._asked.repeats):
            found.append(answers(self._url, self.name, self._asked.texts(), self._asked.tokens))
            progress(len(found))
        drafts, accepted = (now - then for now, then in zip(self._counted(), before, strict=True))
        return Runs(found, accepted / drafts if drafts else None)

    def runs_with(self, one: str, progress: Callable[[int], None]) -> Runs:
        """The same with an optimization switched on, which is off again afterwards."""
        switch(self.server, [one], [], self._place)
        try:
            found = self.runs(progress)
        except BaseException:
            with suppress(SpantraceError):
                switch(self.server, [], [one], self._place)
            raise
        ended = switch(self.server, [], [one], self._place)
        hits = sum(counted["hits"] for counted in ended.counts if counted["id"] == one)
        return Runs(found.answers, found.accepted, hits)

    def on(self) -> list[str]:
        """What is switched on in it."""
        return switched_on(self.server, self._place)

    def switch(self, on: Sequence[str], off: Sequence[str]) -> None:
        """Switch these."""
        switch(self.server, on, off, self._place)

    def _counted(self) -> list[float]:
        return list(counters(self._url, (_DRAFTS, _ACCEPTED)).values())
