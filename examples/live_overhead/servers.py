"""The live vLLM servers that are measured: how each is started, awaited and kept on a core of its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from live_overhead.whole_tokenizer import whole_tokenizer

FIRST_PORT = 8100
READY_S = 420


@dataclass(frozen=True)
class Setup:
    """One server: its name in the tables, its environment, its own arguments, and its model where it has one.

    `ranks` GPUs share its model, each giving it `memory` of its own, `cache` GiB of it for keys and values. Its drafter
    is one of `method` that drafts so many tokens, all of which are accepted.
    """

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    model: str | None = None
    ranks: int = 1
    memory: float = 0.45
    cache: int = 3
    method: str = "dflash"
    drafts: int = 2


V1, V2 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}
SYNC = ("--no-async-scheduling",)
SETS = {
    "0.33.0": [Setup("v0.33.0-V2-async", V2), Setup("v0.33.0-V2-sync", V2, SYNC)],
    "0.26.0": [
        Setup("v0.26.0-V2-async", V2),
        Setup("v0.26.0-V1-async", V1),
        Setup("v0.26.0-V1-sync", V1, SYNC),
        Setup("v0.26.0-V2-sync", V2, SYNC),
    ],
    "0.33.0-tp2": [Setup("v0.33.0-V2-tp2", V2, ("--tensor-parallel-size", "2"), "qwen3-8b", ranks=2, memory=0.2)],
    "0.33.0-dspark": [Setup("v0.33.0-V2-dspark", V2, (), "qwen3-8b", memory=0.25, cache=7, method="dspark", drafts=7)],
    "0.33.0-graph-spans": [Setup("v0.33.0-V2-graph-spans", V2 | {"SPANTRACE_GRAPH_SPANS": "1"})],
}
"""Server i runs on GPU i modulo the number of GPUs; two of them fit on one H200. V1 is 0.26.0's default here.

One with two ranks has GPUs 0 and 1.
"""


def serve(setup: Setup, index: int, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start `vllm serve` on a dummy model, NemotronH unless told otherwise, with its drafter."""
    model = options.models / (setup.model or options.model)
    tokenizer = whole_tokenizer(model, options.out / "tokenizers" / model.name)
    drafts, block = setup.drafts, setup.drafts + 1
    speculative = {"method": setup.method, "model": f"{model}-{setup.method}", "num_speculative_tokens": drafts,
                   "rejection_sample_method": "synthetic", "synthetic_acceptance_length": float(block)}  # fmt: skip
    if not options.cpu:
        speculative["attention_backend"] = "TRITON_ATTN"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "m"]
    command += ["--host", "127.0.0.1", "--port", str(FIRST_PORT + index), "--tokenizer", str(tokenizer)]
    command += ["--speculative-config", json.dumps(speculative)]
    if options.cpu:
        command += ["--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "4", "--block-size", "32"]
    else:
        sizes = sorted({1, 2, 4, *(block * batch for batch in range(1, 5))})
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
        command += [
            *("--load-format", "dummy", "--max-model-len", "40960", "--max-num-seqs", "4"),
            *("--max-num-batched-tokens", "4096", "--gpu-memory-utilization", str(setup.memory)),
            *("--kv-cache-memory-bytes", str(setup.cache << 30), "--attention-config", '{"backend":"FLASH_ATTN"}'),
            *("--compilation-config", json.dumps(graphs), *setup.arguments),
        ]
    environment = dict(os.environ)
    if not options.cpu:
        own = [str((index + rank) % max(options.gpus, setup.ranks)) for rank in range(setup.ranks)]
        environment |= {**setup.environment, "CUDA_VISIBLE_DEVICES": ",".join(own)}
    log = (options.out / f"{setup.name}.log").open("wb")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ask it and all that it started to end; one that has died already is none to stop."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)


def wait_ready(server: subprocess.Popen[bytes], port: int, deadline: float) -> bool:
    """Wait for /health; False when the server died or the deadline passed."""
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
        except OSError:
            time.sleep(1)
        else:
            return True
    return False


def pin(processes: Collection[int]) -> None:
    """Give the main thread of each engine and worker a core of its own; all other threads keep off it and its siblings.

    Without this the scheduler moves an engine beside its own client now and then, and the cycle jumps by half.
    """
    cores = sorted(os.sched_getaffinity(0))
    own = {process: cores[(i + 1) * len(cores) // (len(processes) + 1)] for i, process in enumerate(processes)}
    rest = set(cores) - {sibling for core in own.values() for sibling in _siblings(core)}
    for tasks in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        thread = int(tasks.name)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, {own[thread]} if thread in own else rest)


def _siblings(core: int) -> set[int]:
    """The hardware threads of a core, itself among them: one or two."""
    text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    return {int(number) for number in re.split("[,-]", text.strip())}
