"""The split attention on one GPU, by context and segments, beside vLLM's 2D and 3D kernels, FA3 and PyTorch's own.

The drafter's block of the vLLM write-up: 32 heads on 2 key heads, head_dim 128, a window of 1024 and sinks, 3 queries;
and the same without the window. Each arm is captured in a CUDA graph of as many calls, each on keys of its own, as
outgrow the GPU's cache; the graphs take turns, every second round in reverse order. Each arm's result is first compared
with float64. What is not installed, or is wrong, is left out and named.

python examples/h200_split_kv.py --out h200-split-kv
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from split_kv_arms import HEAD_DIM, HEADS, KEY_HEADS, NO_SINKS, Arm, Work, arms

BYTES_A_SECOND = 4.3e12
"""What an H200's memory gives to a copy."""
ATOL, RTOL, WARMUP = 1.5e-2, 1e-2, 2


@dataclass(frozen=True)
class Row:
    """One arm at one context: microseconds a call, and the bytes that it must read."""

    context: int
    window: int
    queries: int
    arm: str
    us: float
    least: float
    most: float
    bytes: int
    error: float

    @property
    def floor_us(self) -> float:
        """The time that the bytes alone take."""
        return self.bytes / BYTES_A_SECOND * 1e6


def captured(work: Work, arm: Arm) -> Callable[[], None]:
    """A graph of one call for each layer."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        arm(0)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(work.calls):
            arm(call)
    return graph.replay


def us(replay: Callable[[], None]) -> float:
    """Microseconds of one replay, by events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def checked(work: Work, found: dict[str, Arm], missing: list[str]) -> dict[str, tuple[Callable[[], None], float]]:
    """The arms that are right, captured, with their largest errors; the others are named in `missing`."""
    right, wanted = {}, {sinks: work.wanted(sinks) for sinks in (True, False)}
    for name, arm in found.items():
        try:
            work.out.fill_(float("nan"))
            got, expected = arm(0).double(), wanted[name != NO_SINKS]
            error = float((got - expected).abs().max())
            if torch.allclose(got, expected, RTOL, ATOL):
                right[name] = captured(work, arm), error
            else:
                missing.append(f"{name}: its result is wrong by {error:.3g}")
        except Exception as error:
            missing.append(f"{name}: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
    return right


def measure(work: Work, rounds: int) -> tuple[list[Row], list[str]]:
    """Every arm at one context, in turns, and what was left out."""
    found, missing = arms(work)
    right = checked(work, found, missing)
    times: dict[str, list[float]] = {name: [] for name in right}
    for turn in range(rounds + WARMUP):
        for name in right if turn % 2 == 0 else reversed(right):
            spent = us(right[name][0]) / work.calls
            if turn >= WARMUP:
                times[name].append(spent)
    shape = work.context, work.window, work.queries
    rows = [
        Row(*shape, name, median(spent), min(spent), max(spent), work.bytes, right[name][1])
        for name, spent in times.items()
    ]
    return rows, missing


def table(rows: list[Row]) -> str:
    """Markdown: each arm's time, its time over that of the bytes, and its error."""
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16, {HEADS}/{KEY_HEADS} heads of {HEAD_DIM}",
        "",
        "| context | window | q | arm | us | least .. most | us of the bytes at 4.3 TB/s | times that | error |",
        "|--:|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        where = f"{row.context} | {row.window or '-'} | {row.queries} | {row.arm}"
        spent = f"{row.us:.2f} | {row.least:.2f} .. {row.most:.2f}"
        lines.append(f"| {where} | {spent} | {row.floor_us:.2f} | {row.us / row.floor_us:.2f} | {row.error:.1e} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the table where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="1024,4096,8192,16384,32768,34816,65536,131072")
    parser.add_argument("--windows", default="1024,0")
    parser.add_argument("--queries", default="3,1")
    parser.add_argument("--non-causal", action="store_true")
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, help="a path without a suffix, for .md and .json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device here; this measures a GPU")
    queries, windows, contexts = (
        [int(part) for part in text.split(",")] for text in (options.queries, options.windows, options.contexts)
    )
    rows: list[Row] = []
    for shape in ((context, window, q) for q in queries for window in windows for context in contexts):
        more, missing = measure(Work(*shape, not options.non_causal, options.page), options.rounds)
        rows += more
        print("context {}, window {}, q {}:".format(*shape), f"left out: {'; '.join(missing) or 'nothing'}", flush=True)
        torch.cuda.empty_cache()
    print(table(rows))
    if options.out:
        options.out.with_suffix(".md").write_text(table(rows) + "\n")
        options.out.with_suffix(".json").write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
