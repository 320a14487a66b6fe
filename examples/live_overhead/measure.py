"""Record 1000 steady cycles of live vLLM servers, and measure what recording costs their inter-token latency.

Starts every server of the chosen set side by side, then for each in turn, with one stream of greedy requests on it:
records 1000 steady cycles through the command line, then alternates windows that are recorded (B) and not (A) in
the order ABBA and compares the mean time between two chunks of the stream, which is one decode cycle.

    python measure.py --set 0.33.0 --models MODELS --out RESULTS

MODELS holds nemotron-h-30b-a3b and nemotron-h-30b-a3b-dflash: configurations and tokenizer, dummy weights.
Writes NAME.spantrace, NAME.json and summary.md into RESULTS.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from spantrace.capture import Capture, Until
from spantrace.control import default_directory
from spantrace.journal import Journal
from spantrace.vllm_adapter.servers import engine_and_workers, find

CYCLES = 1000
WARMUP = 50
SETTLE_S = 1.0
"""Python runs code of a patched class slower until its call sites have specialised again, some 90 cycles."""
FIRST_PORT = 8100
READY_S = 420


@dataclass(frozen=True)
class Setup:
    """One server: its name in the tables, its environment, and its own arguments."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


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
}
"""Server i runs on GPU i modulo the number of GPUs; two of them fit on one H200. V1 is 0.26.0's default here."""


class Gaps(NamedTuple):
    """Time between two chunks of a stream over one window, in ms."""

    mean: float
    median: float


class Stream(threading.Thread):
    """Keeps one greedy streaming request on the server and notes when each chunk arrived (ns)."""

    def __init__(self, port: int, tokens: int) -> None:
        super().__init__(daemon=True)
        self.port, self.tokens = port, tokens
        self.requests: list[list[int]] = []
        self.errors: list[str] = []
        self.going = True

    def run(self) -> None:
        number = 0
        while self.going:
            number += 1
            try:
                self._request(number)
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(repr(error))
                time.sleep(0.2)

    def _request(self, number: int) -> None:
        body = {"model": "m", "prompt": [10 + (number * 7 + i) % 900 for i in range(256)], "max_tokens": self.tokens,
                "temperature": 0, "ignore_eos": True, "stream": True}  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise http.client.HTTPException(response.read(500).decode())
        arrivals: list[int] = []
        self.requests.append(arrivals)
        for line in response:
            if line.startswith(b"data: {"):
                arrivals.append(time.perf_counter_ns())
            if not self.going:
                break
        connection.close()

    def gaps_ms(self, begin: int, end: int) -> Gaps:
        """Times between two chunks of one request within a window: their mean and median in ms."""
        inside = [np.array([at for at in arrivals[1:] if begin <= at <= end]) for arrivals in self.requests[-3:]]
        gaps = np.concatenate([np.diff(arrivals) for arrivals in inside if len(arrivals) > 1] or [np.array([np.nan])])
        return Gaps(float(gaps.mean() / 1e6), float(np.median(gaps) / 1e6))


def serve(setup: Setup, index: int, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start `vllm serve` on the dummy NemotronH with its DFlash drafter, in the vLLM seed's geometry."""
    model = options.models / options.model
    speculative = {"method": "dflash", "model": f"{model}-dflash", "num_speculative_tokens": 2,
                   "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.0}  # fmt: skip
    if not options.cpu:
        speculative["attention_backend"] = "TRITON_ATTN"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "m"]
    command += ["--host", "127.0.0.1", "--port", str(FIRST_PORT + index)]
    command += ["--speculative-config", json.dumps(speculative)]
    if options.cpu:
        command += ["--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "4", "--block-size", "32"]
    else:
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 3, 4, 6, 9, 12]}
        command += [
            *("--load-format", "dummy", "--max-model-len", "40960", "--max-num-seqs", "4"),
            *("--max-num-batched-tokens", "4096", "--gpu-memory-utilization", "0.45"),
            *("--kv-cache-memory-bytes", str(3 << 30), "--attention-config", '{"backend":"FLASH_ATTN"}'),
            *("--compilation-config", json.dumps(graphs), *setup.arguments),
        ]
    environment = dict(os.environ)
    if not options.cpu:
        environment |= {**setup.environment, "CUDA_VISIBLE_DEVICES": str(index % options.gpus)}
    log = (options.out / f"{setup.name}.log").open("wb")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


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


def record(port: int, path: Path, *how: str) -> subprocess.Popen[str]:
    """Start `spantrace record`."""
    command = [sys.executable, "-m", "spantrace.cli.main", "record", f":{port}", "-o", str(path), "--force", *how]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def window(stream: Stream, port: int, seconds: float, scratch: Path | None) -> Gaps:
    """The gaps between chunks over one window, recorded into `scratch` or, where that is None, not."""
    if scratch is None:
        time.sleep(SETTLE_S)
        begin = time.perf_counter_ns()
        time.sleep(seconds)
        return stream.gaps_ms(begin, time.perf_counter_ns())
    workers, engine = engine_and_workers(find(f":{port}", default_directory()))
    members = {**{worker.pid: "worker" for worker in workers}, engine.pid: "engine"}
    with Journal(scratch, {"options": {}}) as journal:
        with Capture(default_directory(), members, journal, {"gpu": True}) as capture:
            capture.run(Until(seconds=SETTLE_S))
            begin = time.perf_counter_ns()
            capture.run(Until(seconds=seconds))
            gaps = stream.gaps_ms(begin, time.perf_counter_ns())
            if not (capture.stop() and capture.cycles):
                raise RuntimeError("a window was not recorded whole")
        journal.discard()
    return gaps


def overhead(stream: Stream, port: int, rounds: int, seconds: float, scratch: Path) -> dict[str, object]:
    """Windows in the order ABBA; the relative cost of B with a 95% interval over the pairs."""
    bare: list[Gaps] = []
    recorded: list[Gaps] = []
    for _ in range(rounds):
        for kind in "ABBA":
            gaps = window(stream, port, seconds, scratch if kind == "B" else None)
            (recorded if kind == "B" else bare).append(gaps)
    return {name: compare(bare, recorded, column) for column, name in enumerate(Gaps._fields)}


def compare(bare: list[Gaps], recorded: list[Gaps], column: int) -> dict[str, object]:
    """Paired windows: medians, the mean relative change with its t interval, and how far bare windows lie apart."""
    a, b = (np.array(side)[:, column] for side in (bare, recorded))
    change = (b / a - 1) * 100
    change = change[np.isfinite(change)]
    half = stats.t.ppf(0.975, len(change) - 1) * change.std(ddof=1) / np.sqrt(len(change))
    return {
        "bare_ms": float(np.nanmedian(a)),
        "recorded_ms": float(np.nanmedian(b)),
        "change_percent": float(change.mean()),
        "interval_percent": [float(change.mean() - half), float(change.mean() + half)],
        "median_change_percent": float(np.median(change)),
        "a_to_a_percent": float(np.nanmean(np.abs(a[1::2] / a[0::2] - 1)) * 100),
        "pairs": len(change),
        "windows_ms": [a.round(4).tolist(), b.round(4).tolist()],
    }


def pin(engine: int) -> None:
    """Give the engine's main thread a core of its own and keep every other thread off it and off its sibling.

    Without this the scheduler moves the engine beside its own client now and then, and the cycle jumps by half.
    """
    cores = sorted(os.sched_getaffinity(0))
    own = cores[len(cores) // 2]
    text = Path(f"/sys/devices/system/cpu/cpu{own}/topology/thread_siblings_list").read_text()
    first, _, last = text.strip().replace("-", ",").partition(",")
    rest = set(cores) - {own, int(first), int(last or first)}
    for tasks in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(tasks.name), {own} if int(tasks.name) == engine else rest)


def study(setup: Setup, port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is measured on one server."""
    if not options.cpu:
        pin(engine_and_workers(find(f":{port}", default_directory()))[1].pid)
    stream = Stream(port, options.tokens)
    stream.start()
    time.sleep(options.settle)
    recording = options.out / f"{setup.name}.spantrace"
    outcome = record(port, recording, "--cycles", str(options.cycles), "--warmup", str(WARMUP))
    _, text = outcome.communicate(timeout=120)
    print(text, flush=True)
    result: dict[str, Any] = {"name": setup.name, "record": text.strip(), "exit": outcome.returncode}
    if outcome.returncode == 0:
        scratch = options.out / "window.spantrace"
        result |= overhead(stream, port, options.rounds, options.window, scratch)
        scratch.unlink(missing_ok=True)
    stream.going = False
    result["stream_errors"] = stream.errors[:3]
    (options.out / f"{setup.name}.json").write_text(json.dumps(result, indent=1))
    return result


def _line(server: str, name: str, change: dict[str, Any]) -> str:
    low, high = change["interval_percent"]
    return (
        f"| {server} | {name} | {change['bare_ms']:.3f} | {change['recorded_ms']:.3f} "
        f"| {change['change_percent']:+.2f}% | {low:+.2f} .. {high:+.2f}% "
        f"| {change['a_to_a_percent']:.2f}% | {change['pairs']} |"
    )


def main() -> None:
    """Run one set and write its summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=sorted(SETS), required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--model", default="nemotron-h-30b-a3b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--tokens", type=int, default=8000, help="tokens of one request")
    parser.add_argument("--rounds", type=int, default=40, help="ABBA rounds: four windows each")
    parser.add_argument("--window", type=float, default=0.4, help="seconds of one window")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds of load before the first recording")
    parser.add_argument("--cpu", action="store_true", help="a CPU build of vLLM: arguments that it understands")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to spread the servers over")
    parser.add_argument("--only", type=int, help="only the first N servers of the set")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    setups = SETS[options.set][: options.only]
    servers = [serve(setup, index, options) for index, setup in enumerate(setups)]
    deadline = time.monotonic() + READY_S
    lines = [
        "| server | gap between chunks | not recorded ms | recorded ms | change | 95% interval | A to A | pairs |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|",
    ]
    try:
        for index, (setup, server) in enumerate(zip(setups, servers, strict=True)):
            if not wait_ready(server, FIRST_PORT + index, deadline):
                lines.append(f"| {setup.name} | did not start: see its log | | | | |")
                continue
            print(f"{setup.name} is up at {time.strftime('%H:%M:%S')}", flush=True)
            try:
                r = study(setup, FIRST_PORT + index, options)
            except (RuntimeError, subprocess.SubprocessError, OSError) as error:
                lines.append(f"| {setup.name} | failed: {error} | | | | |")
                continue
            lines += [_line(setup.name, name, r[name]) for name in Gaps._fields if name in r]
            print("\n".join(lines[-2:]), flush=True)
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGTERM)
        (options.out / "summary.md").write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
