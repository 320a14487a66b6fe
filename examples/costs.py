"""What spantrace costs on this machine without a GPU: of a span, of a file, of a report, of a start, of a stop.

python examples/costs.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from spantrace.frames import encode
from spantrace.recorder import Recorder, cost_of_a_span
from spantrace.recording import SCHEMA, Cycles, Recording, Spans
from spantrace.spans import PARENT, SPAN_ID, Track
from spantrace.vllm_adapter.hooks import SUPPORTED, Hook, hooks_for
from spantrace.vllm_adapter.installation import Installation
from spantrace.vllm_adapter.probes import Probes

SPANS = 40
PERIOD_NS = 7_200_000
STOPS = 30
LOAD_S = 0.25
"""How long the engine runs before a stop: enough to fill the ring, which the stop then drains."""


def recording(cycles: int) -> Recording:
    """Cycles of 40 spans each, back to back, 28 on the host and 12 on the GPU, with lengths that vary by 10%."""
    random = np.random.default_rng(0)
    names = [SPAN_ID[name] for name, parent in PARENT.items() if parent == "cycle"]
    lengths = random.lognormal(0, 0.1, (cycles, SPANS)) * PERIOD_NS / SPANS
    ends = np.cumsum(lengths).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    first, last = starts[::SPANS], ends[SPANS - 1 :: SPANS]
    track = np.tile(np.repeat([Track.HOST, Track.GPU], [SPANS - 12, 12]), cycles)
    name = np.tile(np.resize(names, SPANS), cycles)
    name[::SPANS] = SPAN_ID["cycle"]
    lane, cycle = track.astype(np.int16), np.repeat(np.arange(cycles), SPANS)
    one, two = np.ones(cycles, dtype=np.int32), np.ones((cycles, 2), dtype=np.int32)
    period = np.append(np.diff(first), -1)
    kind, graph = np.zeros(cycles, dtype=np.int8), np.full(cycles, 3, dtype=np.int8)
    detail = np.ones(cycles, dtype=bool)
    made = Cycles(np.arange(cycles), first, last, period, one, one, one, two, two, graph, kind, detail)
    spans = Spans(name.astype(np.int16), track.astype(np.int8), lane, cycle, starts, ends)
    server = {"model": "example", "num_speculative_tokens": 2}
    return Recording({"schema": SCHEMA, "server": server, "gpu": {"name": "example"}}, made, spans)


def file_size(directory: Path) -> float:
    """MB of a recording of 1000 cycles."""
    path = directory / "thousand.spantrace"
    recording(1000).save(path)
    return path.stat().st_size / 1e6


def report_time(directory: Path) -> float:
    """Seconds of `spantrace report` on a million spans, the whole process."""
    path = directory / "million.spantrace"
    recording(1_000_000 // SPANS).save(path)
    return process_time("report", str(path))


def process_time(*arguments: str) -> float:
    """Median seconds of a spantrace command from its start to its exit."""
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        command = [sys.executable, "-m", "spantrace.cli.main", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return median(times)


def fake_vllm(hooks: Iterable[Hook]) -> None:
    """Modules with an empty function wherever the hook table expects one of vLLM's."""
    for hook in hooks:
        module_name, _, path = hook.target.partition(":")
        owner: Any = sys.modules.setdefault(module_name, types.ModuleType(module_name))
        *parents, name = path.split(".")
        for parent in parents:
            if not hasattr(owner, parent):
                setattr(owner, parent, type(parent, (), {}))
            owner = getattr(owner, parent)
        setattr(owner, name, lambda self, argument=None: None)


class Engine(threading.Thread):
    """A loop that calls one hooked method over and over, and knows the longest time that a turn took it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.worst_ns = 0
        self.on = True

    def run(self) -> None:
        """Turn until `on` is False."""
        core = sys.modules["vllm.v1.core.sched.scheduler"].Scheduler
        last = time.perf_counter_ns()
        while self.on:
            core.update_from_output(core)
            now = time.perf_counter_ns()
            self.worst_ns, last = max(self.worst_ns, now - last), now


def stop_times() -> tuple[int, float, float]:
    """Hooks that a stop removes, ms of CPU that it takes at most, and an engine's longest stall by it (median)."""
    hooks = [replace(hook, probe=None) for hook in hooks_for(SUPPORTED[-1])]
    fake_vllm(hooks)
    taken, stalls = [], []
    for _ in range(STOPS):
        recorder = Recorder()
        installation = Installation(recorder, Probes(recorder, lambda runner: None))
        installation.plan(hooks)
        installation.install()
        engine = Engine()
        engine.start()
        time.sleep(LOAD_S)
        engine.worst_ns, begin = 0, time.thread_time()
        installation.remove()
        for frame in recorder.drain():
            encode(frame)
        taken.append((time.thread_time() - begin) * 1e3)
        stalls.append(engine.worst_ns / 1e6)
        engine.on = False
        engine.join()
    return len(hooks), max(taken), median(stalls)


def main() -> None:
    """Print each figure with its target."""
    with tempfile.TemporaryDirectory() as folder:
        size, report = file_size(Path(folder)), report_time(Path(folder))
    hooks, taken, stall = stop_times()
    rows = [
        ("a host span beyond the bare call", 250, cost_of_a_span(2_000, 301), "ns"),
        (f"1000 cycles x {SPANS} spans on disk", 2, size, "MB"),
        ("spantrace report on a million spans", 1, report, "s"),
        ("spantrace --help", 0.2, process_time("--help"), "s"),
        (f"a stop: {hooks} hooks removed, a full ring drained", 50, taken, "ms"),
        ("an engine's longest stall by that", 50, stall, "ms"),
    ]
    width = max(len(row[0]) for row in rows)
    print(f"{'':{width}}  target  measured")
    for what, target, measured, unit in rows:
        print(f"{what:{width}}  {target:>6g}  {measured:>8.3g} {unit}{'' if measured <= target else '  MISSED'}")


if __name__ == "__main__":
    main()
