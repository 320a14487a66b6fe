"""A span that is held up for the length of a window: asked for, asked for again before it ends by itself, checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from spantrace.campaign.running import Gone
from spantrace.delays import LONGEST_S
from spantrace.errors import SpantraceError
from spantrace.experiment import OFF
from spantrace.frames import Frame


class Holding:
    """Of `delay`, a span and microseconds, or nothing; `ask` sends a request to every process and gives the answers."""

    def __init__(self, delay: Mapping[str, float], ask: Callable[[Frame], list[Frame]]) -> None:
        self._delay, self._ask = delay, ask
        self._until = 0.0
        self._cycles = self._times = self._refused = 0

    def renew(self) -> None:
        """To be called more often than a delay lasts; `Gone` where nothing runs that could be held up."""
        for span, us in self._delay.items() if time.monotonic() > self._until else ():
            self._until = time.monotonic() + LONGEST_S / 2
            request = {"span": span, "track": "host", "ns": round(us * 1e3), "seconds": LONGEST_S}
            if not self._told(request):
                raise Gone(f"no function of {span} runs here that could be held up")

    def end(self, cycles: int) -> None:
        """Hold nothing up any more; SpantraceError where that was not done in each of `cycles`.

        `Gone` where the span was in none of those that began meanwhile; where none began, that tells nothing of it.
        """
        if not self._delay:
            return
        self._told(OFF)
        if self._cycles and not self._times and not self._refused:
            raise Gone(f"{', '.join(self._delay)} never ran in {cycles} cycles, so that it cannot be held up")
        if self._refused or self._times < cycles:
            said = f"{self._times} of {cycles} cycles, {self._refused} were refused"
            raise SpantraceError(f"{', '.join(self._delay)} was held up in {said}")

    def _told(self, request: Frame) -> int:
        """Ask, and count what was held until then; how many functions are held up now."""
        answers = self._ask(request)
        self._cycles += sum(answer["held"]["cycles"] for answer in answers)
        self._times += sum(answer["held"]["times"] for answer in answers)
        self._refused += sum(answer["held"]["refused"] for answer in answers)
        return sum(answer["places"] for answer in answers)
