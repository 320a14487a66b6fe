"""The built-in cycle as what is explained: it is made and looked into by one thread, in turns."""

from __future__ import annotations

from collections.abc import Callable

from spantrace.built_in.running import BuiltIn
from spantrace.built_in.session import Session
from spantrace.explaining.answering import Explainer
from spantrace.explaining.conducting import Design, Explained, conduct
from spantrace.frames import Frame
from spantrace.journal import Journal
from spantrace.loading import load
from spantrace.recording import Recording
from spantrace.vllm_adapter.description import gpu_of_this_process


class ExplainedCycle:
    """What is driven: `work`, which `session` records into `journal` and `explainer` looks into."""

    def __init__(self, work: BuiltIn, session: Session, journal: Journal, explainer: Explainer) -> None:
        self._work, self._session, self._journal, self._explainer = work, session, journal, explainer

    def run(self, cycles: int) -> None:
        """Make so many decode cycles."""
        self._work.decode(self._session, cycles)

    def ask(self, request: Frame) -> list[Frame]:
        """Ask this process."""
        return [self._explainer.answer(request)]

    def recording(self) -> Recording:
        """What was recorded so far."""
        self._session.drain()
        return load(self._journal.part)


def explain(
    work: BuiltIn, design: Design, journal: Journal, progress: Callable[[int], None]
) -> tuple[Recording, Explained]:
    """Record all windows of `design`; the whole recording, and what was seen in them."""
    explainer = Explainer(gpu_of_this_process())
    seen: list[Explained] = []

    def drive(session: Session) -> None:
        try:
            seen.append(conduct(design, ExplainedCycle(work, session, journal, explainer), progress))
        finally:
            explainer.stop()

    work.record(journal, progress, drive, explainer.stacks)
    if not seen:
        raise KeyboardInterrupt
    return load(journal.part), seen[0]
