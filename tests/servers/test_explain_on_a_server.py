"""`spantrace explain` on a live server: it names what slows a span, and leaves the server as it was."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import USUAL
from live import LONG_S, PROGRAM, Witness, wait_until
from quiet import Blurred, judged

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

SLOW_MS = 10.0
SOURCE = Path(__file__).parent / "witness/spantrace_witness.py"
SLOW_LINES = range(
    next(n for n, line in enumerate(SOURCE.read_text().splitlines(), 1) if "perf_counter() + seconds" in line), 10**6
)
IN_ENGINE = ("vllm.v1.core.sched.scheduler", "Scheduler", "_make_cached_request_data")
IN_WORKER = ("vllm.v1.sample.rejection_sampler", "RejectionSampler", "forward")
REQUESTS = 9
TOLERANCE = 1.3
MANY = ("--samples", "1000000", "--seconds", "600")


@contextmanager
def trickle(server: CpuServer) -> Iterator[None]:
    """A short request now and then: to write what vLLM's profiler saw of a busy second takes gigabytes of memory."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.5):
            server.complete(max_tokens=2)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
        finally:
            ended.set()
        asking.result()


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """The usual server."""
    return serve(**USUAL)


def where(server: CpuServer) -> list[str]:
    """The option that says where the server's sockets are."""
    return ["--dir", server.environment["SPANTRACE_DIR"]]


@contextmanager
def slowed(seer: Witness, pid: int, function: tuple[str, str, str]) -> Iterator[None]:
    """A function of the process that takes longer; then whether all of vLLM's are as they were within the block."""
    seer.ask(pid, "slow", *function, SLOW_MS)
    try:
        seer.remember()
        yield
        assert seer.changed() == []
    finally:
        seer.ask(pid, "quicken")


def explain(cli: Cli, server: CpuServer, span: str, *more: str) -> dict[str, Any]:
    """What `explain --format json` says, which must succeed."""
    done = cli("explain", f":{server.port}", "--span", span, "--format", "json", *more, timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("span", "function"), [("schedule", IN_ENGINE), ("sample", IN_WORKER)])
def test_the_function_that_slows_a_span_is_named_with_its_line(
    server: CpuServer, witness: AskWitness, cli: Cli, tmp_path: Path, span: str, function: tuple[str, str, str]
) -> None:
    seer, saved = witness(server), tmp_path / "stacks.speedscope.json"
    pid = seer.engine if function is IN_ENGINE else seer.workers[0]
    with slowed(seer, pid, function), server.load(2) as load:
        found = explain(cli, server, span, "-o", str(saved))
        tokens = load.tokens
        wait_until(lambda: load.tokens > tokens, "more tokens")
        assert seer.ask(pid, "profile_of", function[2]) == "None"
    assert load.errors == []
    assert found["samples"] >= 500
    assert found["left"] is True
    assert found["kernels"] is None
    whole, slow = found["stacks"][0], [node for node in found["stacks"] if node["function"] == "slow_on_purpose"]
    assert slow, [node["function"] for node in found["stacks"]]
    assert slow[0]["file"].endswith("spantrace_witness.py")
    assert slow[0]["line"] in SLOW_LINES[1:3]
    assert slow[0]["seconds"] > 0.2 * whole["seconds"], "most of it, unless the machine holds up other lines too"
    assert found["span_ms"] > SLOW_MS
    frames = json.loads(saved.read_text())["shared"]["frames"]
    assert {"name": "slow_on_purpose", "file": str(SOURCE), "line": SLOW_LINES[0] - 2} in frames


def test_the_text_names_it_too(server: CpuServer, witness: AskWitness, cli: Cli, tmp_path: Path) -> None:
    seer, saved = witness(server), tmp_path / "stacks.html"
    with slowed(seer, seer.workers[0], IN_WORKER), server.load(2):
        done = cli("explain", f":{server.port}", "--span", "sample", "-o", str(saved), timeout=LONG_S)
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert f"of it is slow_on_purpose (spantrace_witness.py:{SLOW_LINES[1]})" in said
    assert "there is no GPU here: torch.profiler sees operators of the CPU only, and no kernel" in said
    assert "slow_on_purpose" in saved.read_text()
    assert "\x1b" not in done.stdout


@pytest.mark.timed
def test_latency_returns_to_what_it_was(server: CpuServer, cli: Cli) -> None:
    def latency() -> float:
        """Seconds of a request, the median."""
        times = []
        for _ in range(REQUESTS):
            begun = time.perf_counter()
            server.complete(max_tokens=32)
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def measure() -> None:
        first, before = latency(), latency()
        with server.load(2):
            explain(cli, server, "draft.propose")
        server.speculation()
        after = latency()
        if max(first, before) > TOLERANCE * min(first, before):
            raise Blurred(f"{first * 1e3:.0f} and {before * 1e3:.0f} ms without any profiler")
        assert after < TOLERANCE * max(first, before), (first, before, after)

    server.complete(max_tokens=32)
    judged(measure)


def test_a_killed_explain_leaves_nothing(server: CpuServer, witness: AskWitness) -> None:
    seer = witness(server)
    pid, name = seer.workers[0], IN_WORKER[2]
    with slowed(seer, pid, IN_WORKER), server.load(2) as load:
        running = subprocess.Popen(
            [PROGRAM, "explain", f":{server.port}", "--span", "sample", *MANY, *where(server)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: "ProfilerState" in (seer.ask(pid, "profile_of", name) or ""), "the sampler")
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()
        wait_until(lambda: not seer.changed(), "the hooks' removal")
        wait_until(lambda: seer.ask(pid, "profile_of", name) == "None", "the sampler's end")
    assert load.errors == []


def test_a_span_that_does_not_run_and_one_that_does_not_exist(server: CpuServer, cli: Cli) -> None:
    with server.load(1):
        absent = cli("explain", f":{server.port}", "--span", "target.metadata.gdn")
    assert absent.returncode == 3
    assert absent.stderr.startswith("spantrace: target.metadata.gdn did not run in ")
    assert "draft.propose" in absent.stderr
    unknown = cli("explain", f":{server.port}", "--span", "target.attention")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("spantrace: no span is called 'target.attention'; choose from cycle, schedule")


def test_an_idle_server(server: CpuServer, cli: Cli) -> None:
    server.speculation()
    idle = cli("explain", f":{server.port}", "--span", "sample")
    assert idle.returncode == 3
    assert idle.stderr == "spantrace: no cycle in 10 s: the server is idle; put load on it while it is recorded\n"


def test_a_load_that_ends_meanwhile(server: CpuServer, witness: AskWitness) -> None:
    seer = witness(server)

    def profile() -> str:
        return seer.ask(seer.engine, "profile_of", IN_ENGINE[2]) or ""

    with slowed(seer, seer.engine, IN_ENGINE):
        with server.load(1):
            running = subprocess.Popen(
                [PROGRAM, "explain", f":{server.port}", "--span", "schedule", *MANY, *where(server)],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            wait_until(
                lambda: "ProfilerState" in (seer.ask(seer.engine, "profile_of", IN_ENGINE[2]) or ""), "the sampler"
            )
        _, said = running.communicate(timeout=LONG_S)
        assert running.returncode == 3
        assert re.fullmatch(
            r"spantrace: the server went idle after \d+ decode cycles; keep load on the server .*\n", said
        )
        wait_until(lambda: not seer.changed(), "the hooks' removal")
        server.complete(max_tokens=8)
        assert profile() == "None"


def test_too_few_samples_and_no_kernel_to_measure(server: CpuServer, cli: Cli) -> None:
    with server.load(1):
        few = cli("explain", f":{server.port}", "--span", "sample", "--samples", "1000000", "--seconds", "0.1")
        kernels = cli("explain", f":{server.port}", "--span", "sample", "--only", "gpu")
    assert few.returncode == 3
    assert "spantrace: not enough: " in few.stderr
    assert " of 1000000 samples in sample within 0.1 s; sample for longer with --seconds" in few.stderr
    assert kernels.returncode == 3
    assert kernels.stderr.startswith("spantrace: there is no GPU here")
    assert kernels.stdout == ""


def test_a_running_profiler_of_vllm_is_named(profiled: tuple[CpuServer, Path], cli: Cli) -> None:
    server, _ = profiled

    def ask(path: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", method="POST"), timeout=LONG_S):
            pass

    ask("/start_profile")
    with trickle(server):
        refused = cli("explain", f":{server.port}", "--span", "sample", timeout=LONG_S)
    ask("/stop_profile")
    with server.load(1) as load:
        allowed = cli("explain", f":{server.port}", "--span", "sample", timeout=LONG_S)
    assert load.errors == []
    assert refused.returncode == 2
    assert refused.stderr.startswith("spantrace: torch.profiler (/start_profile; end it with /stop_profile) is already")
    assert refused.stderr.count("\n") == 1
    assert allowed.returncode == 0, allowed.stderr
