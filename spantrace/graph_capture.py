"""Events for the marks of CUDA graphs, what they read with nothing in between, and what a replay takes with them."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from spantrace.graph_spans import MOST_PARTS, Graph, MarkedGraph

TURNS = 25
WARM_UP = 5
AHEAD = 1_000_000
"""GPU clock cycles of a kernel behind which the launches queue, so that no replay waits for the host."""


def new_events() -> tuple[Any, ...]:
    """One timing event more than a graph has parts; torch creates the CUDA event at its first record."""
    import torch

    return tuple(torch.cuda.Event(enable_timing=True, external=True) for _ in range(MOST_PARTS + 1))


def empty_pair_ns() -> float:
    """What a part with nothing in it reads, in ns: the median over the pairs of a graph of marks, some replays long."""
    import torch

    events, graph, start = new_events(), torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        start.add_(1)
        for event in events:
            event.record()
    read: list[float] = []
    for _ in range(WARM_UP):
        graph.replay()
        torch.cuda.synchronize()
        read += [first.elapsed_time(last) * 1e6 for first, last in pairwise(events)]
    return float(median(read))


def replay_ms(graph: MarkedGraph) -> tuple[float, float]:
    """Milliseconds of a replay without marks and with them, medians of replays in turns; waits for the GPU.

    The replays are of the graph alone: the host is ahead of the GPU.
    """
    plain, marked = list[float](), list[float]()
    for turn in range(WARM_UP + TURNS):
        pair = (graph.plain, graph.marked) if turn % 2 else (graph.marked, graph.plain)
        took = {id(one): _took_ms(one) for one in pair}
        if turn >= WARM_UP:
            plain.append(took[id(graph.plain)])
            marked.append(took[id(graph.marked)])
    return median(plain), median(marked)


def _took_ms(graph: Graph) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(AHEAD)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
