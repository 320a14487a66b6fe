"""The built-in cycle as a command asks for it: built, prepared, and driven while a session records it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import optimized
from optimized.cases import Place
from optimized.reference_cycle.acceptance import Continuation, Forced, lengths_at
from optimized.reference_cycle.cycle import Cycle, random_prompts
from optimized.reference_cycle.load import Lengths, Load, own_continuation
from optimized.reference_cycle.scheduler import Progress
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.settings import describe as settings_of
from spantrace.built_in.memory import SMALLER, refuse_too_large
from spantrace.built_in.session import Session
from spantrace.errors import SpantraceError
from spantrace.inside import Inside
from spantrace.interrupts import signals_held
from spantrace.journal import Journal

ENGINE = "built-in cycle"


@dataclass(frozen=True)
class Asked:
    """What to run: `rates` is the share of drafts to accept, in all or by position; none verifies the drafter's own."""

    settings: Settings
    rates: tuple[float, ...] = ()
    optimize: tuple[str, ...] = ()
    cycles: int = 200
    warmup: int = 20
    graph_spans: bool = False

    def __post_init__(self) -> None:
        drafts = self.settings.speculative
        if self.graph_spans and self.settings.device != "cuda":
            raise SpantraceError("--graph-spans: no CUDA graphs here, the cycle runs on the CPU; leave it out")
        if not all(0.0 <= rate <= 1.0 for rate in self.rates):
            raise SpantraceError(f"acceptance must lie in 0..1, not be {', '.join(map(str, self.rates))}")
        if drafts and len(self.rates) not in (0, 1, drafts):
            raise SpantraceError(f"acceptance by position takes {drafts} rates, not {len(self.rates)}")
        self.source([[]])

    @property
    def synthetic(self) -> bool:
        """Whether the target's own words are verified, and not the drafter's."""
        return bool(self.rates) and self.settings.speculative > 0

    def source(self, tokens: Sequence[Sequence[int]]) -> Continuation | Forced | None:
        """Where the tokens to verify come from, `tokens` being what the target will say."""
        if not self.synthetic:
            return None
        if len(self.rates) == 1:
            return Continuation(tokens, 1.0 - self.rates[0])
        return Forced(tokens, lengths_at(self.rates, self.settings.seed))


class BuiltIn:
    """A cycle with its requests; `strayed` of the finished ones left the continuation that was found beforehand.

    `steps` cycles were recorded; `interrupted` says that Ctrl-C ended it. Several may take turns on one `cycle`.
    """

    def __init__(self, asked: Asked, cycle: Cycle | None = None) -> None:
        self.asked = asked
        self.lengths = Lengths.within(asked.settings)
        if cycle is None:
            refuse_too_large(asked.settings, asked.optimize)
            with switched_on(asked.optimize, asked.settings):
                cycle = Cycle(asked.settings)
        self.cycle = cycle
        self.prompts = random_prompts(asked.settings, asked.settings.batch, self.lengths.prompt)
        self.load = Load(self.cycle, self.prompts, self.lengths.output)
        self.steps = self.finished = self.strayed = 0
        self.interrupted = False
        self._continuation: list[list[int]] = []

    def prepare(self, progress: Callable[[int], None]) -> None:
        """Find what the target will say, if that is what is verified, with the same optimizations on."""
        if not self.asked.synthetic:
            return
        with switched_on(self.asked.optimize, self.asked.settings):
            self.cycle.forget_graphs()
            self._continuation = own_continuation(self.cycle, self.prompts, self.lengths.known, progress)

    def record(
        self,
        journal: Journal,
        progress: Callable[[int], None],
        drive: Callable[[Session], None] | None = None,
        delays: Inside | None = None,
    ) -> None:
        """Record as many decode cycles as asked, or until Ctrl-C, which passes on where there was no cycle yet.

        Begins with new requests. `drive` makes other cycles instead, by `advance`; with `delays` spans can be held up,
        or looked into.
        """
        self.steps = self.finished = self.strayed = 0
        self.cycle.restart()
        with switched_on(self.asked.optimize, self.asked.settings):
            self.cycle.forget_graphs()
            self.cycle.verify_from(self.asked.source(self._continuation) if self._continuation else None)
            graphs = self.asked.graph_spans
            session = Session(self.cycle, describe(self.asked), journal, delays, graph_spans=graphs)
            try:
                with session:
                    if drive:
                        drive(session)
                    else:
                        self.decode(session, self.asked.cycles + self.asked.warmup, progress)
            except KeyboardInterrupt:
                if not self.steps:
                    raise
                self.interrupted = True
        with signals_held():
            session.finish(self.notes())

    def decode(self, session: Session, cycles: int, progress: Callable[[int], None] = lambda decoded: None) -> None:
        """Make cycles until so many of them only decoded."""
        decoded = 0
        while decoded < cycles:
            decoded += self.advance(session)
            progress(decoded)

    def advance(self, session: Session) -> bool:
        """Make one cycle; whether it only decoded."""
        step = self.load.step()
        self.steps += 1
        session.between_cycles()
        self._check(step)
        return not step.prefilled

    def _check(self, step: Progress) -> None:
        for request in step.finished if self._continuation else ():
            known = self._continuation[request.index % len(self._continuation)]
            self.finished += 1
            self.strayed += request.tokens != known[: len(request.tokens)]

    def notes(self) -> list[str]:
        """What to doubt in the figures."""
        if not self.strayed:
            return []
        return [
            f"{self.strayed} of {self.finished} requests left the continuation found beforehand, by rounding: "
            "fewer drafts were accepted than asked"
        ]


@contextmanager
def switched_on(names: Sequence[str], settings: Settings | None = None) -> Iterator[None]:
    """With these optimizations, tested where such a cycle runs, and without them afterwards."""
    on = optimized.apply(names, place=Place(settings.device, settings.dtype) if settings else None)
    try:
        yield
    finally:
        optimized.revert(on)


@contextmanager
def within_memory(settings: Settings) -> Iterator[None]:
    """One sentence in place of PyTorch's, where memory does not suffice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise SpantraceError(
                f"{settings.geometry.name} in {settings.dtype} does not fit into this machine's memory; "
                f"make it smaller with {SMALLER}"
            ) from error
        raise


def describe(asked: Asked) -> dict[str, Any]:
    """What a recording says in the place of a server's configuration."""
    settings, geometry = asked.settings, asked.settings.geometry
    known = settings_of(settings)
    kept = {key: known[key] for key in ("context", "page_size", "pages", "device", "dtype", "seed")}
    drafts = settings.speculative
    return {
        "engine": ENGINE,
        "model": geometry.name,
        "layers": geometry.layers,
        "hidden": geometry.hidden,
        "vocab": geometry.vocab,
        "method": settings.drafter if drafts else None,
        "num_speculative_tokens": drafts,
        "always_drafts": True,
        "rejection_sample_method": "synthetic" if asked.synthetic else None,
        "acceptance": " ".join(f"{rate:g}" for rate in asked.rates) if asked.synthetic else None,
        "torch": torch.__version__,
        "threads": None if settings.device == "cuda" else torch.get_num_threads(),
        **kept,
    }
