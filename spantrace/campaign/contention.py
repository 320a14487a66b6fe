"""How much of the CPUs other processes take while a window is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil


class Neighbours:
    """Watches the CPUs from now on; `own` names processes that belong to the measurement beside this one's children."""

    def __init__(self, own: Callable[[], Iterable[int]] = lambda: ()) -> None:
        self._own = own
        self._since, self._busy, self._ours = time.monotonic(), _busy_s(), self._used_s()

    def share(self) -> float:
        """The share of all CPU time since then that other processes used, from 0 to 1."""
        seconds = (time.monotonic() - self._since) * (psutil.cpu_count() or 1)
        others = (_busy_s() - self._busy) - (self._used_s() - self._ours)
        return min(max(others / seconds, 0.0), 1.0) if seconds > 0 else 0.0

    def _used_s(self) -> float:
        """Of this process, the children that it waited for, those that live, and `own`."""
        me = psutil.Process()
        mine = me.cpu_times()
        used = mine.user + mine.system + mine.children_user + mine.children_system
        living = {child.pid: child for child in me.children(recursive=True)}
        for pid in {*living, *self._own()}:
            with suppress(psutil.Error):
                times = (living.get(pid) or psutil.Process(pid)).cpu_times()
                used += times.user + times.system
        return float(used)


def _busy_s() -> float:
    """Seconds that the CPUs have worked, a hypervisor's other guests included."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle)
