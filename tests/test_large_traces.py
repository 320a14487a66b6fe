"""A trace of a gigabyte is read in less than two gigabytes of memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from traced import MS, US, Event, annotation, event, kernel, launch, written

pytestmark = pytest.mark.long

GIGABYTE = 1 << 30
KERNELS = 300
SHAPES = {"Input Dims": [[3, 4096], [4096, 4096]], "Input type": ["bf16", "bf16"]}
LAUNCHED = {"grid": [132, 1, 1], "block": [256, 1, 1], "registers per thread": 168, "shared memory": 98304,
            "blocks per SM": 1.0, "warps per SM": 8.0, "est. achieved occupancy %": 12}  # fmt: skip
PROGRAM = """
import json, sys
from pathlib import Path
from spantrace.loading import load
cycles = len(load(Path(sys.argv[1])).cycles)
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
print(json.dumps({"cycles": cycles, "peak_bytes": int(peak) * 1024}))
"""


def test_a_gigabyte_is_read_within_two(tmp_path: Path) -> None:
    path = tmp_path / "large.pt.trace.json.gz"
    size, cycles = 0, 0
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": [\n')
        while size < GIGABYTE:
            for text in cycle(cycles):
                size += file.write(text)
            cycles += 1
        file.write('{"ph": "i", "name": "end", "ts": 0}]}\n')
    told = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True).stdout
    found = json.loads(told)
    assert found["cycles"] == cycles
    assert found["peak_bytes"] < 2 * GIGABYTE


def cycle(index: int) -> Iterator[str]:
    """The events of one cycle as text: for each kernel the operator, its launch and the kernel, as profilers write."""
    start = 10**15 + index * 10 * MS
    for one in (annotation(f"ProfilerStep#{index}", start, 9 * MS), *chain.from_iterable(_kernels(index, start))):
        yield f"{written(one)},\n"


def _kernels(index: int, start: int) -> Iterator[tuple[Event, Event, Event]]:
    for number in range(KERNELS):
        at, tie = start + number * 25 * US, index * KERNELS + number + 1
        ran = kernel("void cutlass::device_kernel<gemm_kernel<128, 128, 64>>", at + 12 * US, 22 * US, tie)
        ran["args"] |= LAUNCHED
        yield event("cpu_op", "aten::mm", at, 20 * US, **SHAPES), launch(tie, at + 5 * US, 4 * US), ran
