"""`spantrace optimizations` of this environment, of recordings and of servers played on real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actors import Actor, Cast
from journals import ENGINE, WORKER, Played, sync_server, write_journal
from recordings import make_recording

import optimized
from optimized.gate import State, admit
from optimized.optimization import Optimization, Requirement
from spantrace.cli.main import run
from spantrace.errors import EXIT_BAD_INPUT
from spantrace.loading import load
from spantrace.vllm_adapter import choice, launch, servers
from spantrace.vllm_adapter.servers import Member, Server

ID = "uniform-decode-metadata"
SEAM = "BaseMambaAttentionMetadataBuilder._compute_common_metadata"
COUNTS = {"id": ID, "hits": 1234, "fallbacks": 5, "errors": 0, "reasons": {"a request is still prefilling": 5}}
Captured = pytest.CaptureFixture[str]
Say = Callable[..., dict[str, Any]]


@pytest.fixture
def say(capsys: Captured) -> Say:
    """What `spantrace optimizations ...` says of one optimization."""

    def listed(*arguments: str, chosen: str = ID) -> dict[str, Any]:
        assert run(["optimizations", *arguments, "--format", "json"]) == 0
        return next(one for one in json.loads(capsys.readouterr().out)["optimizations"] if one["id"] == chosen)

    return listed


def recorded(path: Path, vllm: str | None = "0.33.0", server: dict[str, Any] | None = None, **parts: Any) -> str:
    engine = ({} if vllm else {"engine": "built-in cycle"}) | (server or {})
    made = make_recording(cycles=30, server={"vllm": vllm, "method": "dflash", **engine}, **parts)
    made.save(path)
    return str(path)


def declared(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    changed = replace(optimized.discover()[ID], **changes)
    others = {**optimized.discover(), ID: changed}
    monkeypatch.setattr(optimized, "discover", lambda: others)


def test_a_recording_says_what_was_on_and_what_it_did(say: Say, tmp_path: Path, capsys: Captured) -> None:
    path = recorded(tmp_path / "r.spantrace", optimizations=[COUNTS])
    said = say(path)
    assert (said["state"], said["hits"], said["fallbacks"], said["errors"]) == ("on", 1234, 5, 0)
    assert said["remarks"] == ["5 x a request is still prefilling"]
    assert run(["optimizations", path]) == 0
    printed = capsys.readouterr().out
    assert "r.spantrace | vLLM 0.33.0 | method dflash" in printed
    assert f"{ID} on 1,234 5 0 " in " ".join(printed.split())


def test_one_that_never_fired_says_so(say: Say, tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.spantrace", optimizations=[COUNTS | {"hits": 0}])
    assert "never fired: 5 calls fell back, most because a request is still prefilling" in say(path)["why"]


@pytest.mark.parametrize(
    ("vllm", "state", "why"),
    [
        ("0.33.0", "applies", ""),
        ("0.32.0+cpu", "applies", ""),
        ("0.27.0", "refused", f"it does not know {SEAM} of vLLM 0.27.0, only of 0.26.0, 0.28.0, "),
        ("0.33.1", "refused", f"it does not know {SEAM} of vLLM 0.33.1, "),
        ("dev", "refused", f"it does not know {SEAM} of vLLM dev, "),
        (None, "refused", "it does not fire in the built-in cycle"),
    ],
)
def test_a_recording_of_each_version(vllm: str | None, state: str, why: str, say: Say, tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.spantrace", vllm)
    said, other = say(path), say(path, chosen="query-build")
    assert said["state"] == state
    assert said["why"].startswith(why)
    assert bool(said["why"]) == bool(why)
    assert other["state"] == ("refused" if vllm else "applies")
    assert said["fires_in"] == "vLLM 0.26.0, 0.28.0 to 0.33.0"


def test_in_the_built_in_cycle_what_is_for_another_drafter_is_refused(say: Say, tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.spantrace", None)
    for name, drafters in (("gen-bookkeeping", "dspark"), ("context-norm-rope", "")):
        why = f"it is for the drafter {drafters}, and the drafter here is dflash" if drafters else ""
        said = say(path, chosen=name)
        assert (said["state"], said["why"]) == ("refused" if drafters else "applies", why)


@pytest.mark.parametrize(
    ("name", "server", "state", "why"),
    [
        ("accept", {"device": "cpu"}, "refused", "there is no GPU to run its kernel"),
        ("accept", {"device": "cuda"}, "applies", ""),
        ("aux-stream-context", {"device": "cpu", "method": "dspark"}, "refused", "a CPU has no second stream"),
        ("query-build", {"device": "cpu"}, "applies", ""),
        (
            "query-build",
            {"device": "cpu", "method": None},
            "refused",
            "it is for the drafter dflash or dspark or eagle, and ",
        ),
        ("state-commit", {"device": "cuda", "model": "tiny"}, "refused", "the target here keeps no states"),
        ("state-commit", {"device": "cuda", "model": "nemotron-h"}, "applies", ""),
    ],
)
def test_of_a_recorded_cycle_device_drafter_and_states_decide(
    name: str, server: dict[str, Any], state: str, why: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if server["device"] == "cpu":
        pytest.importorskip("torch")
    said = say(recorded(tmp_path / "r.spantrace", None, server), chosen=name)
    assert (said["state"], said["why"][: len(why)]) == (state, why)


def test_a_trace_that_does_not_say_what_it_is_of_is_one_sentence(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "r.spantrace"
    make_recording(cycles=30, server={"vllm": None}).save(path)
    assert run(["optimizations", str(path)]) == EXIT_BAD_INPUT
    why = "does not say which vLLM it is of, so what could be switched on is not known"
    assert capsys.readouterr() == ("", f"spantrace: {path} {why}\n")


def test_what_is_upstream_or_for_another_method(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path / "r.spantrace")
    declared(monkeypatch, upstream=">=0.33")
    assert (say(path)["state"], say(path)["why"]) == ("already upstream", "vLLM 0.33.0 does this by itself")
    declared(monkeypatch, upstream=">=0.34", methods=("dspark", "eagle3"))
    assert say(path)["why"] == "it is for dspark, eagle3, and the method here is dflash"


def test_here_without_vllm_and_with_one_that_is_not_known(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    for vllm, why in ((None, "vLLM is not installed in this environment"), ("0.34.0", f"it does not know {SEAM} of")):
        monkeypatch.setattr(launch, "installed_version", lambda vllm=vllm: vllm)
        assert say()["state"] == "refused"
        assert say()["why"].startswith(why)
    assert say(chosen="query-build")["fires_in"] == "built-in cycle"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"upstream": ">=0.32"}, f"{ID} is already upstream: vLLM 0.32.0 does this by itself; leave it out"),
        (
            {"upstream": ""},
            f"{ID} cannot be served: the source of {SEAM}, split_decodes_and_prefills, mamba_get_block",
        ),
    ],
)
def test_serve_refuses_what_it_can_know(
    changes: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    declared(monkeypatch, **changes)
    monkeypatch.setattr(launch, "installed_version", lambda: "0.32.0")
    monkeypatch.setattr(launch, "serve_command", lambda arguments: [])
    monkeypatch.setattr(
        "optimized.gate.find_spec", lambda name: type("Spec", (), {"submodule_search_locations": [tmp_path]})
    )
    assert run(["serve", "--optimize", ID, "--", "model"]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err.startswith(f"spantrace: {why}")


def test_a_package_without_sources_is_a_stranger(tmp_path: Path) -> None:
    item: Optimization = optimized.discover()[ID]
    assert admit(item, "0.32.0", sources=tmp_path).state is State.REFUSED
    assert admit(item, "0.32.0").state is State.APPLIES


def test_an_unmet_requirement_refuses(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "installed_version", lambda: "0.32.0")
    monkeypatch.setattr("optimized.gate.installed_sources", lambda: None)
    declared(monkeypatch, requirements=(Requirement("a GPU", lambda: "there is no GPU"),))
    assert (say()["state"], say()["why"]) == ("refused", "there is no GPU")


def answering(**parts: Any) -> Callable[[Any, Actor], None]:
    said = {"type": "optimizations", "vllm": "0.32.0", "sources": None, "on": [], "waiting": {}, "refused": {}, **parts}
    return lambda connection, actor: connection.send(said)


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({"on": [COUNTS]}, {"state": "on", "hits": 1234, "why": ""}),
        ({"on": [COUNTS | {"hits": 0}]}, {"state": "on", "hits": 0}),
        (
            {"refused": {ID: "nothing was applied, because x"}},
            {"state": "refused", "why": "nothing was applied, because x"},
        ),
        (
            {"waiting": {ID: ["a.b"]}},
            {"state": "waiting", "why": "it was chosen, and goes in once the server has loaded a.b"},
        ),
        ({}, {"state": "applies", "remarks": [], "hits": None}),
    ],
)
def test_a_server_is_asked_in_each_process(
    worker: dict[str, Any],
    expected: dict[str, Any],
    say: Say,
    cast: Cast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = [
        Member(1, "api", "", None, True),
        Member(ENGINE, "engine", "", 1, True),
        Member(WORKER, "worker", "", ENGINE, True),
    ]
    monkeypatch.setattr(servers, "discover", lambda directory: [Server(1, "vllm serve org/m", "0.32.0", members)])
    log = cast(Played("engine", ENGINE), Played("worker", WORKER), engine=answering(), worker=answering(**worker))
    said = say(str(ENGINE), "--dir", str(tmp_path / "sockets"))
    assert {name: said[name] for name in expected} == expected
    assert log == ["engine optimizations", "worker optimizations"]


def test_a_server_with_an_older_spantrace(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    members = [Member(ENGINE, "engine", "", 1, True)]
    monkeypatch.setattr(servers, "discover", lambda directory: [Server(1, "vllm serve org/m", "0.32.0", members)])
    refusal = {"type": "refused", "why": "unknown request 'optimizations'"}
    cast(Played("engine", ENGINE), engine=lambda connection, actor: connection.send(refusal))
    assert run(["optimizations", str(ENGINE), "--dir", str(tmp_path / "sockets")]) == EXIT_BAD_INPUT
    assert (
        capsys.readouterr().err
        == f"spantrace: process {ENGINE} runs an older spantrace; restart the server to ask it\n"
    )


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nonsense", "nonsense is no recording, and no :PORT, URL or pid of a server"),
        ("none.spantrace", "cannot read none.spantrace: No such file or directory"),
        (":1", "nothing listens on port 1 here"),
        ("4194305", "there is no process 4194305"),
        ("http://192.0.2.1:8000", "192.0.2.1 is another machine"),
    ],
)
def test_targets_that_are_neither(target: str, why: str, capsys: Captured) -> None:
    assert run(["optimizations", target]) == EXIT_BAD_INPUT
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"spantrace: {why}")
    assert len(said.err.splitlines()) == 1


def test_the_header_sums_the_processes_and_notes_what_was_refused(tmp_path: Path) -> None:
    played = sync_server()
    other = COUNTS | {"hits": 1, "fallbacks": 2, "reasons": {"a request is still prefilling": 1, "else": 1}}
    for one, counted in zip(played, ([COUNTS], [other, {**other, "id": "second"}]), strict=True):
        one.counted = counted
        one.about["refused"] = {"third": "nothing was applied, because x"}
    path = tmp_path / "r.spantrace"
    write_journal(path, *played)
    header = load(path.with_name("r.spantrace.part")).header
    reasons = {"a request is still prefilling": 6, "else": 1}
    assert header["optimizations"] == [
        COUNTS | {"hits": 1235, "fallbacks": 7, "reasons": reasons},
        {**other, "id": "second"},
    ]
    assert header["notes"] == ["third is not on: nothing was applied, because x"]
    assert sorted(len(process["optimizations"]) for process in header["processes"]) == [1, 2]


def test_only_what_a_recording_saw_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimized, "counts", lambda: [COUNTS])
    tally = choice.Tally()
    now = [COUNTS | {"hits": 1240, "fallbacks": 6, "reasons": {"a request is still prefilling": 5, "else": 1}}]
    monkeypatch.setattr(optimized, "counts", lambda: now)
    seen = [{"id": ID, "hits": 6, "fallbacks": 1, "errors": 0, "reasons": {"else": 1}}]
    assert tally.counts() == seen
    monkeypatch.setattr(optimized, "counts", lambda: [])
    monkeypatch.setattr(choice, "_ended", now)
    assert tally.counts() == seen, "it was switched off in the meantime"
    assert choice.Tally().counts() == [], "it was off all the time"
