"""The projection of one drafter's verified rows, started ahead of time: on a second stream, or at once on a CPU."""

from __future__ import annotations

from functools import cache
from weakref import proxy

import torch
from torch import Tensor

from optimized.reference_cycle.drafter import Drafter
from optimized.reference_cycle.graphs import Pass

NOT_STARTED = "its rows were not projected ahead in this step"
WRITTEN = "what the projection reads was written since it was started"
OTHER_CAPTURE = "fork and join are not in the same capture"


class Ahead:
    """`rows` is the projection's buffer: that of the drafter's `project_rows` over its captured taps.

    Between `start` and `join` nobody may write to those, to the drafter's slots or to its context lengths. `start` and
    `join` order the streams by events alone, so that a capture takes both of them in.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter: Drafter = proxy(drafter)
        self._stream = aux_stream(drafter.captured.device) if drafter.captured.is_cuda else None
        self._pass: Pass[None] = Pass(self._project, drafter.settings.device, self._stream)
        self._started: tuple[bool, list[int]] | None = None
        drafter.passes.append(self._pass)
        self.rows = torch.empty_like(drafter.project_rows(drafter.captured, self._positions()))

    def start(self) -> None:
        """Fork: from here on the projection may run, beside whatever this stream is given next."""
        self._started = capturing(), self._versions()
        if self._stream is None:
            self._pass()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # A graph cannot be launched into a capture: there the projection becomes a part of the one that is made.
            (self._project if capturing() else self._pass)()

    def why_not(self) -> str | None:
        """Why `rows` are not to be joined in this step."""
        if self._started is None:
            return NOT_STARTED
        if self._started[0] != capturing():
            return OTHER_CAPTURE
        return None if self._started[1] == self._versions() else WRITTEN

    def join(self) -> None:
        """Have this stream wait for the rows that were started."""
        self._wait()
        self._started = None

    def project(self) -> None:
        """Make the rows in this stream, after whatever was started."""
        self.settle()
        self._project()

    def settle(self) -> None:
        """Join what a step has started and not joined, as one that failed: its inputs may be written again."""
        if self._started and self._started[0] == capturing():
            self.join()

    def close(self) -> None:
        """Join what was started, and take the pass from the drafter."""
        self.settle()
        self._drafter.passes.remove(self._pass)

    def _wait(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _project(self) -> None:
        self.rows.copy_(self._drafter.project_rows(self._drafter.captured, self._positions()))

    def _positions(self) -> Tensor:
        return self._drafter.row_positions(self._drafter.context_lengths[self._drafter.slots])

    def _versions(self) -> list[int]:
        """How often PyTorch has written to what the projection reads; a kernel's own writes do not count."""
        read = self._drafter.captured, self._drafter.slots, self._drafter.context_lengths
        return [tensor._version for tensor in read]


def capturing() -> bool:
    """Whether this stream's work goes into a CUDA graph now."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


@cache
def aux_stream(device: torch.device) -> torch.cuda.Stream:
    """The second stream of a GPU, one in a process: cuBLAS keeps a workspace for each stream that it met."""
    return torch.cuda.Stream(device)
