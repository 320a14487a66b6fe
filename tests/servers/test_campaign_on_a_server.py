"""`spantrace ab` on real servers: one that it starts and that dies on the way, and one that runs already."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from conftest import HYBRID, USUAL
from live import PROGRAM, wait_until
from small_load import TOKENS

from spantrace.frames import read_frames
from spantrace.loading import load

if TYPE_CHECKING:
    from conftest import Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

CHOSEN = "uniform-decode-metadata"
ARMS = ["stock", "stock again", CHOSEN]
LOAD = [sys.executable, str(Path(__file__).with_name("small_load.py")), "{url}", "{model}", "{result}"]
LENGTH = ["repeats = 4", "cycles = 30", "warmup = 5"]


def plan_of_a_server(path: Path) -> Path:
    """A plan that starts a server as the other tests do."""
    from cpu_server import CpuServer

    made = CpuServer(**USUAL, target="nemotron")
    arguments = made.command[made.command.index("serve") + 1 :]
    changed = {key: value for key, value in made.environment.items() if os.environ.get(key) != value}
    lines = ['target = "serve"', f'optimize = ["{CHOSEN}"]', *LENGTH]
    lines += ["[load]", f"command = {json.dumps(LOAD)}", "[serve]", f"arguments = {json.dumps(arguments)}"]
    lines += ["[serve.environment]", *(f"{key} = {json.dumps(value)}" for key, value in changed.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def log(directory: Path) -> list[dict[str, Any]]:
    path = directory / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def engine_of(process: subprocess.Popen[str]) -> psutil.Process:
    children = psutil.Process(process.pid).children(recursive=True)
    (engine,) = [child for child in children if " ".join(child.cmdline()).startswith("VLLM::EngineCore")]
    return engine


def records(directory: Path, window: int) -> bool:
    """Whether engine and worker have begun to record a window."""
    for part in directory.glob(f"{window:03d}-*.part"):
        with part.open("rb") as file:
            return sum(frame["type"] == "armed" for frame in read_frames(file)) == 2
    return False


def check(directory: Path, campaign: dict[str, Any]) -> None:
    """Every window is there, with its own optimizations on, and what its load measured."""
    assert [entry["arm"] for entry in campaign["done"]] == [*ARMS, *reversed(ARMS)] * 2
    for entry in campaign["done"]:
        (path,) = directory.glob(f"{entry['window']:03d}-*.spantrace")
        recording = load(path)
        assert recording.header["campaign"]["arm"] == entry["arm"]
        on = [one["id"] for one in recording.header["optimizations"] if one["hits"] > 10]
        assert on == ([CHOSEN] if entry["arm"] == CHOSEN else [])
        assert entry["load"]["tokens_per_s"] == pytest.approx(1e3 * TOKENS / entry["load"]["latency_ms"])
        assert not recording.partial


def test_a_server_that_dies_in_window_5_of_12_costs_that_window_and_resume_completes(
    servers: None, cli: Cli, tmp_path: Path
) -> None:
    plan, directory = plan_of_a_server(tmp_path / "plan.toml"), tmp_path / "campaign"
    command = [PROGRAM, "ab", str(plan), "-o", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: records(directory, 5) or process.poll() is not None, "window 5", timeout=300)
            engine_of(process).kill()
            _, said = process.communicate(timeout=300)
        finally:
            process.terminate()
    assert process.returncode == 3, said
    failed = [(int(number), arm) for number, arm in re.findall(r"window (\d+) of 12 \((.*?)\) failed: ", said)]
    assert (5, "stock again") in failed
    assert len(failed) <= 2, f"one may fail where the machine stands still: {said}"
    missing = f"{len(failed)} of 12 windows are missing"
    assert said.splitlines()[-1] == f"spantrace: {missing}; spantrace ab {directory} measures them"
    kept = {path: path.stat().st_mtime_ns for path in directory.glob("*.spantrace")}
    assert len(kept) == 12 - len(failed)
    done = cli("ab", str(directory), "--format", "json", timeout=300)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    campaign = json.loads(done.stdout)["campaign"]
    assert [(one["window"], one["arm"]) for one in campaign["failures"]] == failed
    check(directory, campaign)


def test_a_running_server_is_switched_and_has_on_afterwards_what_it_had_before(
    serve: Serve, cli: Cli, tmp_path: Path
) -> None:
    server = serve(**HYBRID)
    plan, directory = plan_of_a_running_server(server, tmp_path / "plan.toml"), tmp_path / "campaign"
    server.complete(max_tokens=8)
    before = state(cli, server)
    assert before > ("on", 0)
    dry = cli("ab", str(plan), "-o", str(directory), "--dry-run")
    assert (dry.returncode, directory.exists()) == (0, False), dry.stderr
    assert state(cli, server) == before, "one that had been switched off and on would count anew"
    kill_in_the_first_window(plan, directory)
    assert state(cli, server)[0] != "on", "its first arm is stock"
    done = cli("ab", str(plan), "-o", str(directory), "--format", "json", timeout=300)
    assert done.returncode == 0, done.stderr
    estimate = done.stderr.splitlines()[1]
    assert re.match(r"estimated time \d+ (s|min) and what the load takes besides; if it is ", estimate)
    check(directory, json.loads(done.stdout)["campaign"])
    assert state(cli, server)[0] == "on"


def kill_in_the_first_window(plan: Path, directory: Path) -> None:
    command = [PROGRAM, "ab", str(plan), "-o", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: records(directory, 1) or process.poll() is not None, "window 1")
        finally:
            process.kill()


def state(cli: Cli, server: CpuServer) -> tuple[str, int]:
    """Of the optimization: its state in a server, and its hits."""
    told = json.loads(cli("optimizations", f":{server.port}", "--format", "json").stdout)
    return next((one["state"], one["hits"]) for one in told["optimizations"] if one["id"] == CHOSEN)


def plan_of_a_running_server(server: CpuServer, path: Path) -> Path:
    lines = [f'target = ":{server.port}"', f'optimize = ["{CHOSEN}"]', *LENGTH]
    path.write_text("\n".join([*lines, "[load]", f"command = {json.dumps(LOAD)}"]) + "\n")
    return path
