"""The built-in cycle as the subject of an experiment: the windows drive it, and set delays between its steps."""

from __future__ import annotations

from collections.abc import Callable

from spantrace.built_in.running import BuiltIn
from spantrace.built_in.session import Session
from spantrace.delays import Delays, calibrated_spin
from spantrace.experiment import Design, conduct
from spantrace.frames import Frame
from spantrace.journal import Journal


class DelayedCycle:
    """What an experiment or a campaign drives: `work`, which `session` records and `delays` hold up."""

    def __init__(self, work: BuiltIn, session: Session, delays: Delays) -> None:
        self._work, self._session, self._delays = work, session, delays

    def run(self, cycles: int) -> None:
        """Make so many decode cycles."""
        self._work.decode(self._session, cycles)

    def delay(self, request: Frame) -> list[Frame]:
        """Hold up from the next cycle on."""
        answer = self._delays.answer(request)
        self._delays.new_cycle()
        return [answer]


def experiment(work: BuiltIn, design: Design, journal: Journal, progress: Callable[[int], None]) -> str:
    """Record all windows of `design`; what there is to say of the end."""
    delays = Delays(calibrated_spin() if work.asked.settings.device == "cuda" else None)
    said: list[str] = []

    def drive(session: Session) -> None:
        said.append(conduct(design, DelayedCycle(work, session, delays), journal, progress))

    work.record(journal, progress, drive, delays)
    return said[0] if said else "interrupted"
