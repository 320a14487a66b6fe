"""`--restore-stock`: what a fix that is upstream saves is measured by being without it, and each command says so."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaigns import campaign, counts
from recordings import make_recording

import optimized
from optimized.gate import State, admit
from spantrace.campaign.code import own_code
from spantrace.campaign.parsing import parse, read
from spantrace.campaign.plan import AGAIN, ALL, STOCK, Plan
from spantrace.campaign.server import RunningServer
from spantrace.campaign.store import Store
from spantrace.cli.main import run
from spantrace.cli.measuring import restored
from spantrace.errors import EXIT_BAD_INPUT, SpantraceError
from spantrace.vllm_adapter import choice, launch, live, servers
from spantrace.vllm_adapter.live import Outcome
from spantrace.vllm_adapter.servers import Server

FIX, STOCK_ID, OTHER = "skip-draft-rebuild", "stock-skip-draft-rebuild", "uniform-decode-metadata"
BUILD_ONLY = "the build only: slot mappings are not"
NOT_UPSTREAM = f"{FIX} is known to be upstream in vLLM 0.32.0, 0.33.0 only, and this is vLLM"
Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


# The declaration


@pytest.mark.parametrize("version", ["0.31.0", "0.27.0", "0.34.0", "dev"])
def test_only_what_is_upstream_is_restored(version: str) -> None:
    admission = admit(optimized.discover()[STOCK_ID], version)
    assert (admission.state, admission.why) == (State.REFUSED, f"{NOT_UPSTREAM} {version}")


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.0"])
def test_what_is_upstream_is_not_switched_on_but_restored(version: str) -> None:
    assert admit(optimized.discover()[FIX], version).state is State.UPSTREAM
    assert admit(optimized.discover()[STOCK_ID], version).state is State.APPLIES


# The list of optimizations


def listed(capsys: Captured, path: Path, vllm: str, **parts: Any) -> tuple[dict[str, dict[str, Any]], str]:
    """What is said of a recording, by id, and as text on one line."""
    make_recording(cycles=30, server={"vllm": vllm, "method": "dflash"}, **parts).save(path)
    assert run(["optimizations", str(path), "--format", "json"]) == 0
    said = {one["id"]: one for one in json.loads(capsys.readouterr().out)["optimizations"]}
    assert run(["optimizations", str(path)]) == 0
    return said, " ".join(capsys.readouterr().out.split())


def test_the_list_says_what_is_upstream_and_how_to_be_without_it(capsys: Captured, tmp_path: Path) -> None:
    said, text = listed(capsys, tmp_path / "r.spantrace", "0.33.0")
    assert (said[FIX]["state"], said[FIX]["why"]) == ("already upstream", "vLLM 0.33.0 does this by itself")
    assert said[FIX]["remarks"][0].startswith(f"--restore-stock {FIX} takes it out: ")
    assert said[STOCK_ID]["state"] == "applies"
    assert f"vLLM 0.33.0 does this by itself --restore-stock {FIX} takes it out: " in text
    assert BUILD_ONLY in text
    said, text = listed(capsys, tmp_path / "r.spantrace", "0.31.0")
    assert (said[FIX]["state"], said[FIX]["remarks"]) == ("applies", [])
    assert (said[STOCK_ID]["state"], said[STOCK_ID]["why"]) == ("refused", f"{NOT_UPSTREAM} 0.31.0")
    assert "--restore-stock" not in text


def test_a_recording_says_that_stock_was_restored(capsys: Captured, tmp_path: Path) -> None:
    said, _ = listed(capsys, tmp_path / "r.spantrace", "0.33.0", optimizations=[counts(STOCK_ID, 12)])
    assert (said[STOCK_ID]["state"], said[STOCK_ID]["hits"]) == ("on", 12)
    assert said[FIX]["state"] == "already upstream"


# Servers


@pytest.fixture
def served(monkeypatch: Patch) -> Callable[..., tuple[int, dict[str, str]]]:
    """Runs `spantrace serve`, with a vLLM of that version whose sources are not looked at: its code and environment."""

    def serve(vllm: str, *arguments: str) -> tuple[int, dict[str, str]]:
        given: dict[str, str] = {}
        monkeypatch.setattr(launch, "installed_version", lambda: vllm)
        monkeypatch.setattr(launch, "serve_command", lambda arguments: ["vllm"])
        monkeypatch.setattr("optimized.gate.installed_sources", lambda: None)
        monkeypatch.setattr(optimized.optimization, "find_spec", lambda name: object())
        monkeypatch.setattr(os, "execve", lambda program, command, environment: given.update(environment))
        return run(["serve", *arguments, "--", "model"]), given

    return serve


def test_a_server_is_started_without_a_fix_and_it_is_said_how_much_of_it(served: Any, capsys: Captured) -> None:
    code, environment = served("0.33.0", "--restore-stock", FIX, "--optimize", OTHER)
    assert (code, environment[choice.CHOICE]) == (0, f"{OTHER},{STOCK_ID}")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"spantrace: {FIX} is restored to stock: ")
    assert BUILD_ONLY in said.err
    assert said.err.count("\n") == 1
    code, environment = served("0.33.0", "--restore-stock", FIX)
    assert environment[choice.CHOICE] == STOCK_ID
    served("0.33.0", "--optimize", OTHER)
    assert "restored" not in capsys.readouterr().err.splitlines()[1:]


WRONG = [
    (["--restore-stock", "nonsense"], "no optimization is called 'nonsense'; spantrace optimizations"),
    (["--restore-stock", OTHER], f"{OTHER} cannot be restored to stock; what can be: "),
    (["--restore-stock", STOCK_ID], f"{STOCK_ID} cannot be restored to stock; what can be: "),
]


@pytest.mark.parametrize(
    ("vllm", "arguments", "why"),
    [
        *(("0.33.0", *wrong) for wrong in WRONG),
        ("0.33.0", ["--optimize", FIX], f"{FIX} is already upstream: vLLM 0.33.0 does this by itself; leave it out"),
        (
            "0.33.0",
            ["--optimize", FIX, "--restore-stock", FIX],
            f"{FIX} cannot be switched on and restored to stock at once",
        ),
        ("0.31.0", ["--restore-stock", FIX], f"{STOCK_ID} cannot be served: {NOT_UPSTREAM} 0.31.0"),
    ],
)
def test_what_cannot_be_restored_is_refused_before_the_start(
    vllm: str, arguments: list[str], why: str, served: Any, capsys: Captured
) -> None:
    assert served(vllm, *arguments) == (EXIT_BAD_INPUT, {})
    said = capsys.readouterr().err
    assert said.startswith(f"spantrace: {why}")
    assert said.count("\n") == 1


@pytest.fixture
def asked(monkeypatch: Patch) -> list[tuple[list[str], list[str]]]:
    """What a played server, on which all of it is switched, was asked to put on and off."""
    requests: list[tuple[list[str], list[str]]] = []

    def switch(server: Server, on: Any = (), off: Any = (), directory: Any = None) -> Outcome:
        requests.append((list(on), list(off)))
        ended = [counts(name, 5) for name in off]
        return Outcome(tuple(on), tuple(on), tuple(off), ended, 1.5)

    monkeypatch.setattr(servers, "find", lambda target, place: Server(1, "vllm serve model", "0.33.0", []))
    monkeypatch.setattr(live, "switch", switch)
    monkeypatch.setattr(live, "switched_on", lambda server, place: [STOCK_ID])
    return requests


def test_a_running_server_is_switched_to_stock_and_back(asked: list[Any], capsys: Captured) -> None:
    assert run(["toggle", ":1", "--restore-stock", FIX, "--on", OTHER]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"{STOCK_ID} is on" in text
    assert f"{FIX} is restored to stock" in text
    assert BUILD_ONLY in text
    for off in (STOCK_ID, "all"):
        assert run(["toggle", ":1", "--off", off, "--format", "json"]) == 0
        (one,) = json.loads(capsys.readouterr().out)["optimizations"]
        assert (one["id"], one["now"], one["hits"]) == (STOCK_ID, "off", 5)
    assert asked == [([OTHER, STOCK_ID], []), ([], [STOCK_ID]), ([], [STOCK_ID])]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [*WRONG, (["--on", FIX, "--restore-stock", FIX], f"{FIX} cannot be switched on and restored to stock at once")],
)
def test_a_server_is_not_asked_for_what_cannot_be(
    arguments: list[str], why: str, asked: list[Any], capsys: Captured
) -> None:
    assert run(["toggle", ":1", *arguments]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err.startswith(f"spantrace: {why}")
    assert asked == []


def test_a_process_of_another_vllm_refuses(monkeypatch: Patch) -> None:
    monkeypatch.setattr(choice, "running_vllm", lambda: "0.31.0")
    with pytest.raises(SpantraceError, match=f"^{STOCK_ID}: {NOT_UPSTREAM} 0.31.0$"):
        choice.plan([STOCK_ID], [])
    assert choice.plan([], [STOCK_ID]).changes() == []


# Campaigns


SERVE = 'target = "serve"\nserve = {arguments = ["M"]}\n'


def plan(text: str) -> Plan:
    return parse(text, lambda name: "")


def test_stock_is_without_the_fix_and_the_arm_of_the_fix_is_the_server_as_it_is() -> None:
    found = plan(f'{SERVE}optimize = ["{OTHER}"]\nrestore = ["{FIX}"]\n')
    assert {arm.name: found.switched(arm) for arm in found.arms} == {
        STOCK: [STOCK_ID],
        AGAIN: [STOCK_ID],
        OTHER: [OTHER, STOCK_ID],
        FIX: [],
        ALL: [OTHER],
    }
    treatments = [set(), set(), {OTHER}, {FIX}, {OTHER, FIX}]
    assert [arm.treatment for arm in found.arms] == treatments
    named = plan(f'{SERVE}restore = ["{FIX}"]\naa = false\n[[arm]]\nname = "x"\non = ["{OTHER}"]\n')
    assert [found.switched(arm) for arm in named.arms] == [[STOCK_ID], [], [OTHER, STOCK_ID]]


def test_what_is_restored_is_part_of_the_plan() -> None:
    text = f'{SERVE}optimize = ["{OTHER}"]\n'
    with_it, without = plan(f'restore = ["{FIX}"]\n{text}'), plan(text)
    assert read(with_it.text()) == with_it
    assert read(without.text()) == without
    assert with_it.hash != without.hash
    assert plan(f"restore = []\n{text}").hash == without.hash


def test_the_hash_of_the_code_is_that_of_the_fixes_folder() -> None:
    assert own_code([STOCK_ID]) == own_code([FIX]) != own_code([])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'{SERVE}restore = "{FIX}"', f"restore of the plan must be a list, not '{FIX}'"),
        (f'restore = ["{FIX}"]', "the plan restores stock, which only a server's vLLM can"),
        (f'{SERVE}optimize = ["{FIX}"]\nrestore = ["{FIX}"]', f"{FIX} cannot be in optimize and in restore of the"),
        (f'{SERVE}restore = ["nonsense"]', "no optimization is called 'nonsense'; spantrace optimizations"),
        (f'{SERVE}restore = ["{OTHER}"]', f"{OTHER} cannot be restored to stock; what can be: "),
    ],
)
def test_a_plan_that_cannot_be_restored_is_one_sentence(text: str, why: str) -> None:
    with pytest.raises(SpantraceError, match=f"^{why}"):
        plan(text)


def test_ab_takes_it_for_servers_only(asked: list[Any], capsys: Captured, tmp_path: Path, monkeypatch: Patch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert run(["ab", "built-in", "--restore-stock", FIX]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err == "spantrace: --restore-stock is for servers\n"
    assert run(["ab", ":1", "--restore-stock", "nonsense", "--load", "none"]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err.startswith(
        "spantrace: no optimization is called 'nonsense'; spantrace optimizations"
    )


def test_a_running_server_is_tried_in_every_arm(asked: list[Any], tmp_path: Path, monkeypatch: Patch) -> None:
    for name in ("switch", "switched_on"):
        monkeypatch.setattr(f"spantrace.campaign.server.{name}", getattr(live, name))
    monkeypatch.setattr("spantrace.campaign.server.check", live.switch)
    monkeypatch.setattr("spantrace.campaign.server.find", servers.find)
    store = Store(tmp_path / "c", plan(f'target = ":1"\nrestore = ["{FIX}"]\n'))
    with RunningServer(store, tmp_path) as target:
        assert [target.live(arm) for arm in plan(f'target = ":1"\nrestore = ["{FIX}"]').arms] == [[STOCK_ID]] * 2 + [[]]
    assert asked == [([STOCK_ID], []), ([STOCK_ID], []), ([], [STOCK_ID])]


@pytest.mark.parametrize("hits", [9, 0, None])
def test_a_campaign_says_whether_stock_was_without_the_fix(hits: int | None) -> None:
    on = {} if hits is None else {STOCK: (STOCK_ID,), AGAIN: (STOCK_ID,)}
    made = campaign({STOCK: {}, AGAIN: {}, FIX: {}}, windows=2, cycles=20, on=on, hits={STOCK_ID: hits or 0})
    facts = restored(plan(f'{SERVE}restore = ["{FIX}"]'), defaultdict(list, made))
    labels = [fact.label for fact in facts]
    if hits:
        assert labels == ["restored"]
        assert facts[0].parts == (f"stock: {STOCK_ID} 18 hits, 0 fallbacks",)
    else:
        assert labels == ["restored", "NEVER FIRED"]
        why = "no call reached it" if hits is None else "never fired: 60 calls fell back"
        assert f"stock: {STOCK_ID} was on and {why}" in facts[1].parts[0]
    assert restored(plan(f'{SERVE}optimize = ["{OTHER}"]'), defaultdict(list, made)) == []
