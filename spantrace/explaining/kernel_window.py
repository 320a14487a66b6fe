"""A window of torch.profiler in the process that launches the kernels, started beside the threads that launch them.

CUPTI sees the launches of every thread and the kernels of every stream, so that the server's own threads need not be
asked. Anchors, ranges of which the host's time is known, tie the trace's clock to CLOCK_MONOTONIC.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spantrace.errors import SpantraceError
from spantrace.explaining.profilers import gpu_profiler
from spantrace.frames import Frame

ANCHOR = "spantrace.anchor"
ANCHORS = 20


class KernelWindow:
    """One trace at a time; `gpu` is the index of the device, None where there is none.

    `others` says who else may use torch.profiler here.
    """

    def __init__(self, gpu: int | None, others: str = "") -> None:
        self._gpu, self._others = gpu, others
        self._profile: Any = None
        self._anchors: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Start to trace; SpantraceError where another profiler is at work."""
        import torch

        if whose := gpu_profiler(self._others):
            raise SpantraceError(f"{whose}; wait until it has ended")
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU] if self._gpu is None else [kinds.CPU, kinds.CUDA]
        self._profile, self._anchors = torch.profiler.profile(activities=activities), []
        self._profile.start()
        self._anchor()

    def end(self) -> Frame:
        """The packed trace of what happened since, and the anchors [n, 2]: before a range was opened, and after."""
        self._anchor()
        self._stop()
        with TemporaryDirectory(prefix="spantrace-") as folder:
            path = Path(folder) / "trace.json.gz"
            self._profile.export_chrome_trace(str(path))
            trace, self._profile = path.read_bytes(), None
        return {"trace": trace, "anchors": [list(anchor) for anchor in self._anchors]}

    def abandon(self) -> None:
        """End a trace that nobody will fetch; nothing where there is none."""
        if self._profile is not None:
            self._stop()
            self._profile = None

    def _stop(self) -> None:
        import torch

        if self._gpu is None:
            self._profile.stop()
            return
        with torch.cuda.device(self._gpu):
            self._profile.stop()

    def _anchor(self) -> None:
        import torch

        for _ in range(ANCHORS):
            before = time.perf_counter_ns()
            with torch.profiler.record_function(ANCHOR):
                self._anchors.append((before, time.perf_counter_ns()))
