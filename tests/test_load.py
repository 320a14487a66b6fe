"""What a load on a server is started with, what is read of its result, and what else the CPUs did meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from spantrace.campaign import contention, server
from spantrace.campaign.contention import LOOK_S, Neighbours
from spantrace.campaign.holding import Holding
from spantrace.campaign.parsing import parse
from spantrace.campaign.plan import Arm, Plan
from spantrace.campaign.running import Gone
from spantrace.campaign.served import START_S, ServedServer
from spantrace.campaign.server import BENCH_S, CYCLE_S, RunningServer
from spantrace.campaign.store import LOG, Store, Window
from spantrace.capture import Until
from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.vllm_adapter.load import Load, parse_result
from spantrace.vllm_adapter.servers import Server

pytestmark = pytest.mark.timed


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


def plan_of(target: str, load: str = "", named: str = "a") -> Plan:
    arms = '[[arm]]\nname = "x"\narguments = ["--y"]\n' if target == "serve" else f'optimize = ["{named}"]\n'
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
    assert RunningServer(Store(tmp_path, plan), tmp_path).seconds(windows) == pytest.approx(6 * each)
    served = ServedServer(plan_of("serve", load), tmp_path, tmp_path / "log")
    turns = [Window(number, arm) for number, arm in enumerate(plan_of("serve").turns(), start=1)]
    assert [window.arm.name for window in turns] == ["stock", "stock again", "x", "x", "stock again", "stock"]
    assert served.seconds(turns) == pytest.approx(6 * each + 3 * START_S)
    assert served.port() == 81


class PlayedServer:
    """A running server for a campaign, in which only what is on matters; `checked` counts the plans it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *on: str) -> None:
        self.on, self.root, self.checked = set(on), 7, 0
        played = {"find": self._find, "switched_on": lambda *_: sorted(self.on), "check": self._check}
        for name, function in {**played, "switch": self._switch}.items():
            monkeypatch.setattr(f"spantrace.campaign.server.{name}", function)

    def _find(self, *_: object) -> Server:
        return Server(self.root, "vllm serve M", "0.32.0")

    def _check(self, *_: object) -> None:
        self.checked += 1

    def _switch(self, server: Server, on: list[str], off: list[str], place: Path) -> None:
        self.on = (self.on | set(on)) - set(off)

    def window(self, target: RunningServer, arm: Arm) -> None:
        """What a window begins with."""
        self._switch(target.server(arm), target.live(arm), [] if arm.on else [CHOSEN], Path())


CHOSEN = "uniform-decode-metadata"


def test_a_running_server_is_not_changed_before_a_window_and_has_on_afterwards_what_it_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, server = Store(tmp_path, plan_of(":81", named=CHOSEN)), PlayedServer(monkeypatch, CHOSEN)
    with RunningServer(store, tmp_path):
        assert (server.checked, server.on) == (3, {CHOSEN})
    with store, RunningServer(store, tmp_path) as target:
        store.create()
        server.window(target, store.plan.arms[0])
        assert server.on == set()
    assert server.on == {CHOSEN}
    assert [entry["event"] for entry in log(tmp_path)] == ["created", "switched", "restored"]


def test_what_a_killed_campaign_switched_is_put_back_by_the_one_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan, server = plan_of(":81", named=CHOSEN), PlayedServer(monkeypatch, CHOSEN)
    with Store(tmp_path, plan) as store:
        store.create()
        server.window(RunningServer(store, tmp_path).__enter__(), plan.arms[0])
    with RunningServer(Store(tmp_path, plan), tmp_path):
        pass
    assert server.on == set(), "it was killed, and a dry run changes nothing"
    with Store(tmp_path, plan) as store, RunningServer(store, tmp_path) as target:
        server.window(target, plan.arms[0])
    assert server.on == {CHOSEN}
    assert [entry["event"] for entry in log(tmp_path)] == ["created", "switched", "restored"]
    server.on.clear()
    with Store(tmp_path, plan) as store, RunningServer(store, tmp_path) as target:
        server.window(target, plan.arms[2])
    assert server.on == set(), "what somebody has switched since then stays"


def log(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / LOG).read_text().splitlines()]


def busy(seconds: float) -> str:
    return f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


def others_work(seconds: float) -> None:
    """Keep a CPU busy with a grandchild whose parent ends at once, which is nobody's child here."""
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{busy(seconds)}' &"], check=True)


ONE = 1 / (os.cpu_count() or 1)
"""The share of one CPU."""


def test_what_others_take_of_the_cpus_is_seen_from_the_first_look_on() -> None:
    neighbours = Neighbours()
    assert neighbours.share() == 0.0
    others_work(1.5)
    neighbours.look()
    time.sleep(1.2)
    assert 0.4 * ONE < neighbours.share() <= 1.0
    time.sleep(0.5)


def test_what_an_own_process_used_that_ends_meanwhile_is_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose parent is killed is nobody's to wait for, so that what it used is in no other process's figures."""
    works = [0.0]
    monkeypatch.setattr(contention, "_busy_s", lambda: works[0])
    parent = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {busy(30)!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", parent]) as own:
        while not (found := psutil.Process(own.pid).children()):
            time.sleep(0.01)
        neighbours, began = Neighbours(), found[0].cpu_times().user
        neighbours.look()
        time.sleep(1.5 * LOOK_S)
        neighbours.look()
        works[0] = found[0].cpu_times().user - began
        own.kill()
        found[0].kill()
        psutil.wait_procs(found, timeout=10)
    assert works[0] > 0.1
    assert neighbours.share() < 0.1 * ONE


class PlayedCapture:
    """A recording of a server whose load takes a while to start, during which others work."""

    cycles = steps = 0
    note = ""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def run(self, until: Until, progress: Callable[[int], None]) -> None:
        """Nothing at first, then all cycles."""
        progress(self.cycles)
        if self.steps:
            self.cycles = self.steps = until.cycles or 0
            return
        assert self._neighbours.share() == 0.0
        self.steps = 1

    def delay(self, request: Frame) -> list[Frame]:
        """Nothing is held up."""
        return []


def test_others_are_watched_from_the_first_step_of_the_load_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    works = iter(range(0, 10_000, 1000))
    monkeypatch.setattr(contention, "_busy_s", lambda: next(works))
    neighbours = Neighbours()
    capture: Any = PlayedCapture(neighbours)
    target = RunningServer(Store(tmp_path, plan_of(":81")), tmp_path)
    target._follow(capture, Holding({}, capture.delay), None, neighbours)
    assert capture.cycles == 100
    assert (next(works), neighbours.share()) == (1000, 1.0), "asked once, when the first step was there"


class EndedLoad:
    """A load that is over, or has failed, before the recording has begun."""

    running = False

    def __init__(self, failure: str) -> None:
        self._failure = failure

    def figures(self, timeout: float) -> dict[str, float]:
        """Nothing, or why it failed."""
        if self._failure:
            raise SpantraceError(self._failure)
        return {}


@pytest.mark.parametrize("failure", ["", "the load ended with code 1, it said: no model"])
def test_a_load_that_was_over_too_soon_is_blamed_and_not_the_span_that_is_held_up(
    failure: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class NoCycle(contextlib.nullcontext[Any]):
        cycles, steps, note = 0, 0, ""

        def __enter__(self) -> Any:
            return self

        def run(self, until: Until, progress: Callable[[int], None]) -> None:
            progress(0)

        def stop(self) -> bool:
            return True

        def delay(self, request: Frame) -> list[Frame]:
            return [{"places": 1, "held": {"cycles": 0, "times": 0, "refused": 0}}]

    monkeypatch.setattr(server, "Capture", lambda *_: NoCycle())
    monkeypatch.setattr(server, "roles", lambda found: {})
    target, arm = RunningServer(Store(tmp_path, plan_of(":81")), tmp_path), Arm("held", delay={"sample": 50})
    found: Any = SimpleNamespace(root=os.getpid())
    journal: Any = None
    load: Any = EndedLoad(failure)
    with pytest.raises(SpantraceError, match=failure or "^the load ended after 0 of 100 decode cycles") as raised:
        target._record(found, arm, journal, load)
    assert not isinstance(raised.value, Gone)


@pytest.mark.parametrize(
    ("places", "cycles", "times", "refused", "why", "gone"),
    [
        (0, 0, 0, 0, "no function of sample runs here that could be held up", True),
        (1, 9, 0, 0, "sample never ran in 9 cycles, so that it cannot be held up", True),
        (1, 9, 0, 2, "sample was held up in 0 of 9 cycles, 2 were refused", False),
        (1, 9, 8, 0, "sample was held up in 8 of 9 cycles, 0 were refused", False),
        (1, 0, 0, 0, "sample was held up in 0 of 9 cycles, 0 were refused", False),
    ],
)
def test_what_cannot_be_held_up_at_all_ends_the_campaign(
    places: int, cycles: int, times: int, refused: int, why: str, gone: bool
) -> None:
    answers = iter([(places, 0, 0, 0), (0, cycles, times, refused)])

    def ask(request: Frame) -> list[Frame]:
        where, begun, held, not_held = next(answers)
        return [{"places": where, "held": {"cycles": begun, "times": held, "refused": not_held}}]

    def hold() -> None:
        holding = Holding({"sample": 50}, ask)
        holding.renew()
        holding.end(9)

    with pytest.raises(SpantraceError, match=f"^{why}$") as raised:
        hold()
    assert isinstance(raised.value, Gone) is gone
