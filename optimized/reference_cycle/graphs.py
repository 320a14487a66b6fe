"""A pass over static buffers: called as it is on a CPU, captured once and then replayed as a CUDA graph on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from optimized.reference_cycle.marking import Twin, marking

Result = TypeVar("Result")


class Pass(Generic[Result]):
    """`run` reads buffers that stay where they are, and may be repeated: running it twice changes nothing more.

    So warming up and capturing leave no trace. It must not wait for the GPU. Its result's tensors are overwritten by
    the next call. `run` is looked up anew at each capture, so that after `forget` a replaced method takes effect.

    A pass that runs beside others must be captured on a `stream` of its own: cuBLAS keeps one workspace for each stream
    that it was captured on, and two graphs that replay at a time may not share it.
    """

    def __init__(self, run: Callable[[], Result], device: str, stream: torch.cuda.Stream | None = None) -> None:
        self._run, self._stream = run, stream
        self._captured = torch.device(device).type == "cuda"
        self._graph: Any = None
        self._result: Any = None
        self._twin: Twin[Result] | None = None

    def __call__(self) -> Result:
        """Run the pass once; the first call on a GPU captures it."""
        if not self._captured:
            return self._run()
        if self._graph is None:
            self._capture()
        if self._twin is not None and self._twin.begins():
            self._twin.graph.marked.replay()
            return self._twin.result
        self._graph.replay()
        result: Result = self._result
        return result

    @property
    def replayed(self) -> bool:
        """Whether a graph was captured, so that the next call replays it."""
        return self._graph is not None

    def forget(self) -> None:
        """Drop the graph: the next call captures what the code then is."""
        self._graph = self._result = self._twin = None

    def _capture(self) -> None:
        """Warm up on a side stream, where lazy initialisation may still happen, then record without running."""
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(2):
                self._run()
        main.wait_stream(side)
        self._graph, self._result = self._record(self._run)
        again = partial(self._record, pool=self._graph.pool())
        self._twin = marking.twin(self._graph, again, self._run)

    def _record(self, run: Callable[[], Result], pool: Any = None) -> tuple[Any, Result]:
        """A graph of `run`, in the memory of another one of the same pass where its `pool` is given."""
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph, pool=pool, stream=self._stream):
            result = run()
        return graph, result


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hold Python's garbage collector off: a former graph that it destroys in the middle of a capture spoils that."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
