"""Which cycles are recorded in detail: runs of some, as the GPU may work on one while the host is in the next."""

from __future__ import annotations

from collections.abc import Callable

RUN = 8
"""Cycles of one run."""


class Detail:
    """Counts cycles and tells `switch` where detail ends and begins: one run of cycles in `every` has it.

    The first run has, and it is on before the first cycle. `switch(on)` says whether it could do so; if not it is
    asked again at the next cycle.
    """

    def __init__(self, every: int, switch: Callable[[bool], bool]) -> None:
        self._every, self._switch = every, switch
        self._cycles = 0
        self.on = True

    def new_cycle(self) -> bool:
        """Begin a cycle; whether it is one in detail."""
        due = not self._cycles // RUN % self._every
        self._cycles += 1
        if due is not self.on and self._switch(due):
            self.on = due
        return self.on
