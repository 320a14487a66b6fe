"""Times two implementations in turns, so that a clock that drifts, or a neighbour that wakes up, meets both."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch.utils.benchmark import Timer

from optimized.cases import Contest
from optimized.reference_cycle.graphs import Pass

SAMPLE_SECONDS = 0.002
"""What a sample lasts at least, of which a call is a part."""
GRAPH_SECONDS = 0.0002
"""What a graph replays at least, so that launching it does not count."""
MOST_IN_A_GRAPH = 200
COPIED_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}
"""More than a cache holds."""


@dataclass(frozen=True)
class Race:
    """Seconds a call, pair by pair: stock and fast of one turn follow each other.

    `captured` says whether both replay CUDA graphs; `why_not` is what kept them from it on a GPU.
    """

    stock: tuple[float, ...]
    fast: tuple[float, ...]
    captured: bool
    why_not: str | None = None


def race(contest: Contest, device: str, turns: int) -> Race:
    """Time both sides in `turns` turns, each beginning the next turn that the other began."""
    try:
        runners, why_not = [_runner(call, device) for call in (contest.stock, contest.fast)], None
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        runners = [_Runner(call, 1) for call in (contest.stock, contest.fast)]
        why_not = str(error).partition("\n")[0] or type(error).__name__
    seconds: tuple[list[float], list[float]] = ([], [])
    counts = [runner.enough() for runner in runners]
    for turn in range(turns):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[side].append(runners[side].seconds(counts[side]))
    return Race(tuple(seconds[0]), tuple(seconds[1]), device == "cuda" and why_not is None, why_not)


def copy_bandwidth(device: str, turns: int) -> float:
    """Bytes a second that a large copy reads and writes on this device: the median of `turns`."""
    source = torch.ones(COPIED_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    runner = _runner(lambda: target.copy_(source), device)
    count = runner.enough()
    return 2.0 * int(source.nbytes) / median(runner.seconds(count) for _ in range(turns))


@dataclass(frozen=True)
class _Runner:
    """`call` does the work `times` times."""

    call: Callable[[], object]
    times: int

    def seconds(self, count: int) -> float:
        """Seconds that the work takes once, by `count` calls."""
        timer = Timer("call()", globals={"call": self.call}, num_threads=torch.get_num_threads())
        return float(timer.timeit(count).mean) / self.times

    def enough(self) -> int:
        """Calls that fill a sample."""
        return max(1, round(SAMPLE_SECONDS / (self.seconds(1) * self.times)))


def _runner(call: Callable[[], object], device: str) -> _Runner:
    """On a GPU a graph of so many calls that launching it does not count; RuntimeError where it cannot be captured."""
    if device != "cuda":
        return _Runner(call, 1)
    _must_not_wait(call)
    once = _Runner(_repeated(call, 1), 1)
    times = min(max(1, round(GRAPH_SECONDS / once.seconds(3))), MOST_IN_A_GRAPH)
    return _Runner(_repeated(call, times), times)


def _must_not_wait(call: Callable[[], object]) -> None:
    """Raise RuntimeError where the work waits for the GPU: no graph holds that, and a failed capture leaves traces."""
    call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls this mode a prototype
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _repeated(call: Callable[[], object], times: int) -> Pass[object]:
    def run() -> object:
        for _ in range(times - 1):
            call()
        return call()

    captured = Pass(run, "cuda")
    captured()
    torch.cuda.synchronize()
    return captured
