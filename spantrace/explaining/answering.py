"""What a recording that explains is asked for: to begin and to end a window of stacks or of kernels."""

from __future__ import annotations

import time
from collections.abc import Callable

from spantrace.errors import SpantraceError
from spantrace.explaining.kernel_window import KernelWindow
from spantrace.explaining.stacks import Stacks
from spantrace.frames import Frame

BEGIN_STACKS, END_STACKS, BEGIN_KERNELS, END_KERNELS = "begin stacks", "end stacks", "begin kernels", "end kernels"
REQUESTS = frozenset({BEGIN_STACKS, END_STACKS, BEGIN_KERNELS, END_KERNELS})
ANSWER = "explained"


class Explainer:
    """The profilers of one recording in one process; `stacks` is called inside its spans.

    `gpu` is the index of its device; without one there is no kernel, and torch.profiler is not asked.
    """

    def __init__(self, gpu: int | None, wake: Callable[[], None] = lambda: None, others: str = "") -> None:
        self.stacks = Stacks(wake, others)
        self._kernels = None if gpu is None else KernelWindow(gpu, others)

    def answer(self, request: Frame) -> Frame:
        """What a request led to, when it was asked and when in force; why not, where it was refused."""
        doing, asked = request["type"], time.perf_counter_ns()
        try:
            found = self._do(doing, request)
        except SpantraceError as error:
            found = {"refused": str(error)}
        except Exception as error:
            found = {"refused": f"{doing} failed: {type(error).__name__}: {error}"}
        return {"type": ANSWER, "asked_ns": asked, "at_ns": time.perf_counter_ns(), **found}

    def stop(self) -> None:
        """Take every profiler away."""
        self.stacks.end()
        if self._kernels:
            self._kernels.abandon()

    def stop_after_fork(self) -> None:
        """In a child, where nobody will ask for what was seen."""
        self.stacks.halt()

    def _do(self, doing: str, request: Frame) -> Frame:
        if doing == BEGIN_STACKS:
            return {"places": self.stacks.begin(request["span"])}
        if doing == END_STACKS:
            return self.stacks.end()
        if self._kernels is None:
            return {"trace": None}
        if doing == BEGIN_KERNELS:
            self._kernels.begin()
            return {}
        return self._kernels.end()
