"""Known answers on a real server: a delay is found where it was put, and what a load or a busy engine says is told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import USUAL
from live import wait_until
from quiet import ATTEMPTS, Blurred, judged

from analyzers.per_cycle import periods
from spantrace.loading import load
from spantrace.vllm_adapter.load import Load, RunningLoad

if TYPE_CHECKING:
    from conftest import Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

pytestmark = pytest.mark.timed

SPAN, DELAY_US = "output.update", 200
LONG_US, MOST_OF_IT, ENOUGH, WITHIN = 5000, 0.9, 0.1, 0.1
"""A delay beside which the cycle's own unrest is small, how much of a cycle it may be where half of them are delayed,
and how well, of it, the cycle must be known to be judged."""
NOTHING = 0.02
"""Milliseconds, a tenth of the delay: by less the spans behind it are slower for the caches that it leaves cold."""
LOAD = [sys.executable, str(Path(__file__).with_name("small_load.py")), "{url}", "{model}", "{result}"]


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """A server whose spans may be held up."""
    return serve(**USUAL, allow_delays=True)


def ab(
    cli: Cli, directory: Path, *lines: str, form: str = "json", requests: int = 3
) -> subprocess.CompletedProcess[str]:
    """`spantrace ab` of a plan with the load of so many requests, of some 23 cycles each."""
    plan = directory / "plan.toml"
    plan.write_text("\n".join([*lines, "[load]", f"command = {json.dumps([*LOAD, str(requests)])}"]) + "\n")
    return cli("ab", str(plan), "-o", str(directory / "campaign"), "--format", form, timeout=300)


def held(server: CpuServer, us: int, repeats: int = 8, cycles: int = 40, span: str = SPAN) -> list[str]:
    """The lines of a plan that holds a span up in one arm."""
    arm = ["[[arm]]", 'name = "held"', f'delay = {{ "{span}" = {us} }}']
    lengths = [f"repeats = {repeats}", f"cycles = {cycles}", "warmup = 5"]
    return [f'target = ":{server.port}"', *lengths, *arm]


def effects_of_holding(
    server: CpuServer, cli: Cli, directory: Path, us: int, repeats: int = 8, cycles: int = 40
) -> dict[tuple[str, str], dict[str, Any]]:
    """What a new campaign says of its arm `held`, by quantity and where measured; what failed is tried again."""
    shutil.rmtree(directory / "campaign", ignore_errors=True)
    for _ in range(ATTEMPTS):
        done = ab(cli, directory, *held(server, us, repeats, cycles), requests=4 + cycles // 20)
        if not done.returncode:
            break
    if done.returncode:
        raise RuntimeError(done.stderr)
    (arm,) = (one for one in json.loads(done.stdout)["arms"] if one["name"] == "held")
    return {(one["quantity"]["name"], one["quantity"]["where"]): one for one in arm["effects"]}


def test_200_us_in_one_span_are_found_there_and_nowhere_else(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    def measure() -> None:
        effects = effects_of_holding(server, cli, tmp_path, DELAY_US)
        found = effects[SPAN, "host"]
        longer = found["change"]["difference"]
        if (known := (longer["high"] - longer["low"]) / (2e-3 * DELAY_US)) > WITHIN:
            raise Blurred(f"the span is known to {known:.0%} of the delay")
        assert longer["value"] == pytest.approx(DELAY_US / 1e3, rel=WITHIN), longer
        assert found["adjusted"] < 0.01
        moved = {quantity for quantity, one in effects.items() if _moved(one) and quantity[1] != "run"}
        assert {name for name, _ in moved} <= {"cycle", SPAN, "output.wait", "host waits", "between cycles"}

    judged(measure)


def _moved(effect: dict[str, Any]) -> bool:
    shown = effect["adjusted"] is not None and effect["adjusted"] < 0.05
    return shown and abs(effect["change"]["difference"]["value"]) > NOTHING


@pytest.mark.timeout(1200)
def test_the_cycle_moves_as_sensitivity_predicts(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    us = min(LONG_US, int(MOST_OF_IT * cycle_us(server, cli, tmp_path / "short.spantrace")))
    asked = ("--span", SPAN, "--delay", str(us), "--max-slowdown", "0.5", "--cycles", "20", "--blocks", "60")

    def measure() -> None:
        with server.load(1, max_tokens=400):
            where = ("--seconds", "150", "-o", str(tmp_path / "s.spantrace"), "--force")
            said = cli("sensitivity", f":{server.port}", *asked, *where, "--format", "json", timeout=200)
        if said.returncode:
            raise RuntimeError(said.stderr)
        (predicted,) = (one["slope"] for one in json.loads(said.stdout)["sensitivity"])
        _refuse_blurred(predicted)
        moved = effects_of_holding(server, cli, tmp_path, us, 16, 60)["cycle", "host"]
        found = {key: value / us * 1e3 for key, value in moved["change"]["difference"].items() if key != "n"}
        _refuse_blurred(found)
        assert found["value"] == pytest.approx(predicted["value"], abs=0.15)

    judged(measure)


def cycle_us(server: CpuServer, cli: Cli, path: Path) -> float:
    """The median period under the load that is held up, in us."""
    with server.load(1, max_tokens=400):
        done = cli("record", f":{server.port}", "--cycles", "100", "-o", str(path))
    assert done.returncode == 0, done.stderr
    return float(np.nanmedian(periods(load(path)))) / 1e3


def _refuse_blurred(slope: dict[str, float]) -> None:
    """`Blurred` where the interval of a change of the cycle, as a part of the delay, is too wide to judge by."""
    if (width := (slope["high"] - slope["low"]) / 2) > ENOUGH:
        raise Blurred(f"the cycle is known to {width:.0%} of the delay")


def test_a_server_that_may_not_be_delayed_is_refused_before_anything_is_measured(
    serve: Serve, cli: Cli, tmp_path: Path
) -> None:
    done = ab(cli, tmp_path, *held(serve(**USUAL), DELAY_US))
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("spantrace: this server was not started to be delayed; start it with spantrace serve")
    assert list((tmp_path / "campaign").glob("*.spantrace")) == []


def test_a_delay_of_what_never_runs_ends_the_campaign_in_the_first_window_that_tells(
    server: CpuServer, cli: Cli, tmp_path: Path
) -> None:
    never = held(server, DELAY_US, repeats=4, cycles=30, span="target.metadata.gdn")
    done = ab(cli, tmp_path, "aa = false", *never, form="table")
    assert (done.returncode, done.stdout) == (3, "")
    # On a machine that stands still a window may fail by itself, which tells nothing of the span.
    assert re.match(
        r"spantrace: the campaign stopped because target.metadata.gdn never ran in 30 cycles, so that it cannot be "
        r"held up; [12] of 8 windows are kept, ",
        done.stderr.splitlines()[-1],
    ), done.stderr


def test_a_cache_that_a_busy_engine_does_not_empty_is_told(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    lines = [line for line in held(server, DELAY_US) if not line.startswith(("repeats", "cycles"))]
    with server.load(2, max_tokens=400):
        wait_until(lambda: server.metrics()["vllm:num_requests_running"] > 0, "running requests")
        done = ab(cli, tmp_path, "aa = false", "repeats = 2", "cycles = 10", *lines, form="table")
    assert done.returncode == 0, done.stderr
    told = "the prefix cache was not emptied: the engine has requests; wait until it is idle"
    assert told in " ".join(done.stdout.split())


def test_vllms_own_benchmark_is_a_load(server: CpuServer) -> None:
    shape = Load(prefix=64, input=16, output=24, requests=3)
    with RunningLoad(shape, server.url) as running:
        figures = running.figures(timeout=150.0)
    assert set(figures) == {"itl_ms", "ttft_ms", "latency_ms", "tokens_per_s", "cached_tokens"}
    assert figures["latency_ms"] > figures["ttft_ms"] > 0
    assert figures["cached_tokens"] > 0, "the later requests share the first one's prefix"
