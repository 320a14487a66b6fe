"""What a load on a server is started with, what is read of its result, and what else the CPUs did meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spantrace.campaign.contention import Neighbours
from spantrace.campaign.plan import Plan, parse
from spantrace.campaign.served import START_S, ServedServer
from spantrace.campaign.server import BENCH_S, CYCLE_S, RunningServer
from spantrace.campaign.store import Window
from spantrace.errors import SpantraceError
from spantrace.vllm_adapter.load import Load, parse_result


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_the_load_of_the_seed_is_what_is_put_on_by_default(tmp_path: Path) -> None:
    words = Load().words("http://127.0.0.1:8000", "served", "/models/real", tmp_path / "r.json")
    assert words[1:5] == ["-m", "vllm.entrypoints.cli.main", "bench", "serve"]
    lengths = [option(words, f"--random-{name}-len") for name in ("prefix", "input", "output")]
    assert lengths == ["32768", "2048", "256"]
    assert (option(words, "--max-concurrency"), option(words, "--temperature")) == ("1", "0")
    assert (option(words, "--model"), option(words, "--tokenizer")) == ("served", "/models/real")
    assert (option(words, "--result-dir"), option(words, "--result-filename")) == (str(tmp_path), "r.json")


def test_a_command_is_filled_in_and_without_either_there_is_no_load(tmp_path: Path) -> None:
    load = Load(("bench", "{url}/v1", "--as={model}", "{result}", "{other}"))
    assert load.words("u", "m", "t", tmp_path) == ["bench", "u/v1", "--as=m", str(tmp_path), "{other}"]
    assert [one.any for one in (load, Load(), Load(requests=0))] == [True, True, False]


@pytest.mark.parametrize(
    ("written", "figures"),
    [
        ({"mean_itl_ms": 5, "mean_ttft_ms": 7.5, "output_throughput": 90, "p99_itl_ms": 8, "completed": 3},
         {"itl_ms": 5.0, "ttft_ms": 7.5, "tokens_per_s": 90.0}),
        ({"latency_ms": 20}, {"latency_ms": 20.0}),
        ({"itl_ms": None}, {}),
    ],
)  # fmt: skip
def test_results_are_read_by_our_names_and_by_the_benchmarks(
    written: dict[str, object], figures: dict[str, float], tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    assert parse_result(path) == {}
    path.write_text(json.dumps(written))
    assert parse_result(path) == figures


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("{", "the load's result is not what `vllm bench serve` writes"),
        ("[]", "the load's result is not what `vllm bench serve` writes"),
        ('{"mean_itl_ms": "fast"}', "the load's result is not what `vllm bench serve` writes"),
        ('{"completed": 0}', "the load completed no request"),
    ],
)
def test_a_result_that_is_none_is_one_sentence(written: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(written)
    with pytest.raises(SpantraceError, match=why):
        parse_result(path)


def plan_of(target: str, load: str = "") -> Plan:
    arms = '[[arm]]\nname = "x"\narguments = ["--y"]\n' if target == "serve" else 'optimize = ["a"]\n'
    head = f'target = "{target}"\nrepeats = 2\ncycles = 90\nwarmup = 10\n'
    tables = (
        f'[load]\n{load}\n[serve]\narguments = ["M", "--port", "81"]\n' if target == "serve" else f"[load]\n{load}\n"
    )
    return parse(head + arms + tables, str)


@pytest.mark.parametrize(("load", "bench"), [("", BENCH_S), ('command = ["x"]', 0.0), ("requests = 0", 0.0)])
def test_the_estimate_counts_windows_loads_and_starts(load: str, bench: float, tmp_path: Path) -> None:
    plan = plan_of(":81", load)
    windows = [Window(number, arm) for number, arm in enumerate(plan.turns(), start=1)]
    each = 100 * CYCLE_S + bench
    assert RunningServer(plan, tmp_path).seconds(windows) == pytest.approx(6 * each)
    served = ServedServer(plan_of("serve", load), tmp_path, tmp_path / "log")
    turns = [Window(number, arm) for number, arm in enumerate(plan_of("serve").turns(), start=1)]
    assert [window.arm.name for window in turns] == ["stock", "stock again", "x", "x", "stock again", "stock"]
    assert served.seconds(turns) == pytest.approx(6 * each + 3 * START_S)
    assert served.port() == 81


def test_what_others_take_of_the_cpus_is_seen() -> None:
    busy = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    neighbours = Neighbours()
    # A grandchild whose parent ends at once is nobody's child here.
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{busy}' &"], check=True)
    time.sleep(1.2)
    assert 0.4 / (os.cpu_count() or 1) < neighbours.share() <= 1.0
    time.sleep(0.5)
