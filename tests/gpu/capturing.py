"""CUDA graphs of a call: how many nodes there are, and what a call takes when graphs repeat it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from optimized.cases import Contest
from optimized.timing import race


def captured(call: Callable[[], object]) -> Any:
    """A graph of the call, which has run once before, so that nothing is left to compile."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        call()
    graph.instantiate()
    return graph


def nodes(graph: Any) -> int:
    """How many nodes a graph has, as the driver says."""
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    failed = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    assert not failed, f"cuGraphGetNodes returned {failed}"
    return count.value


def microseconds(stock: Callable[[], object], fast: Callable[[], object], turns: int = 20) -> tuple[float, float]:
    """What a call of each side takes in a CUDA graph, the two timed in turns."""
    found = race(Contest("", stock, fast, (), ()), "cuda", turns)
    assert found.captured, found.why_not
    return median(found.stock) * 1e6, median(found.fast) * 1e6
