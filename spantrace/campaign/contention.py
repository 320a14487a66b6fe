"""How much of the CPUs other processes take while a window is recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

LOOK_S = 1.0
"""How often the own processes are looked at: what one uses between the last look and its end counts as others'."""


class Neighbours:
    """Watches the CPUs from the first `look` on; this process and `roots` are its own, with all their descendants."""

    def __init__(self, roots: Iterable[int] = ()) -> None:
        self._roots = {os.getpid(), *roots}
        self._used: dict[psutil.Process, float] = {}
        self._since = self._looked = self._busy = self._ours = 0.0

    def look(self) -> None:
        """See what each process has used by now; to be called often, as one that has ended does not say it any more."""
        now = time.monotonic()
        if not self._since:
            self._look()
            self._since, self._busy, self._ours = now, _busy_s(), sum(self._used.values())
        elif now - self._looked >= LOOK_S:
            self._look()

    def share(self) -> float:
        """The share of all CPU time since the first look that other processes used, from 0 to 1."""
        if not self._since:
            return 0.0
        self._look()
        seconds = (time.monotonic() - self._since) * (psutil.cpu_count() or 1)
        others = (_busy_s() - self._busy) - (sum(self._used.values()) - self._ours)
        return min(max(others / seconds, 0.0), 1.0)

    def _look(self) -> None:
        self._looked = time.monotonic()
        for root in self._roots:
            with suppress(psutil.Error):
                own = psutil.Process(root)
                for process in (own, *own.children(recursive=True)):
                    with suppress(psutil.Error):
                        times = process.cpu_times()
                        self._used[process] = times.user + times.system


def _busy_s() -> float:
    """Seconds that the CPUs have worked, a hypervisor's other guests included."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle)
