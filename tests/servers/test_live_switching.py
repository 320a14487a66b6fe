"""Real servers under load: optimizations are switched between two steps, spans are held up, nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import HYBRID, USUAL
from live import DELAY, MANY, NS, PROGRAM, Witness, assert_clean, live, wait_until

from spantrace.errors import SpantraceError
from spantrace.loading import load
from spantrace.spans import SPAN_ID
from spantrace.vllm_adapter.live import reset_prefix_cache, switch
from spantrace.vllm_adapter.servers import find
from spantrace.windows import WINDOWS

if TYPE_CHECKING:
    from conftest import AskWitness, Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli

CHOSEN = "uniform-decode-metadata"
SEAM = "vllm.v1.attention.backends.mamba_attn:BaseMambaAttentionMetadataBuilder:_compute_common_metadata"


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """A hybrid target with a DFlash drafter that was started with an optimization and may be delayed."""
    return serve(**HYBRID)


@pytest.fixture(scope="module")
def plain(serve: Serve) -> CpuServer:
    """The usual server, which caches prefixes and may not be delayed."""
    return serve(**USUAL)


def toggle(cli: Cli, server: CpuServer, *arguments: str) -> dict[str, Any]:
    """What `spantrace toggle` says of the one optimization."""
    said = cli("toggle", f":{server.port}", *arguments, "--format", "json")
    assert said.returncode == 0, said.stderr
    (one,) = json.loads(said.stdout)["optimizations"]
    assert one["id"] == CHOSEN
    return dict(one)


def state(cli: Cli, server: CpuServer) -> dict[str, Any]:
    """What `spantrace optimizations` says of it."""
    said = cli("optimizations", f":{server.port}", "--format", "json")
    assert said.returncode == 0, said.stderr
    return next(one for one in json.loads(said.stdout)["optimizations"] if one["id"] == CHOSEN)


@contextmanager
def switched_off(cli: Cli, server: CpuServer, seer: Witness) -> Iterator[None]:
    """With it off, which is how the witness remembers vLLM, and on again."""
    toggle(cli, server, "--off", CHOSEN)
    try:
        seer.remember()
        yield
    finally:
        toggle(cli, server, "--on", CHOSEN)


def test_it_is_switched_under_load_and_the_answer_comes_when_it_is_in_force(
    server: CpuServer, witness: AskWitness, cli: Cli
) -> None:
    seer = witness(server)
    with server.load(2) as requests, switched_off(cli, server, seer):
        for _ in range(3):
            on = toggle(cli, server, "--on", CHOSEN)
            assert (on["before"], on["now"], on["hits"]) == ("off", "on", None)
            assert seer.changed() == [SEAM]
            wait_until(lambda: state(cli, server).get("hits"), "a hit")
            off = toggle(cli, server, "--off", CHOSEN)
            assert (off["before"], off["now"], off["errors"]) == ("on", "off", 0)
            assert off["hits"] > 0
            assert seer.changed() == []
            assert (state(cli, server)["state"], state(cli, server)["hits"]) == ("applies", None)
        again = toggle(cli, server, "--off", CHOSEN)
        assert (again["before"], again["now"]) == ("off", "off")
        answered = requests.requests
        wait_until(lambda: requests.requests > answered + 2, "more answers")
    assert requests.errors == []
    assert state(cli, server)["state"] == "on"


def test_an_idle_server_is_switched_at_once_and_goes_on_as_before(server: CpuServer, cli: Cli) -> None:
    server.complete(max_tokens=8)
    began = time.monotonic()
    assert toggle(cli, server, "--off", "all")["now"] == "off"
    assert toggle(cli, server, "--on", CHOSEN)["now"] == "on"
    assert time.monotonic() - began < 20
    assert state(cli, server)["hits"] == 0
    server.complete(max_tokens=8)
    assert state(cli, server)["hits"] > 0


def test_a_recording_goes_on_and_counts_what_fired_while_it_ran(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "r.spantrace"
    with server.load(2) as requests:
        with live(server, path, *MANY, "--warmup", "0") as running:
            running.has(cycles=20)
            first = toggle(cli, server, "--off", CHOSEN)["hits"]
            running.has(running.steps() + 20)
            toggle(cli, server, "--on", CHOSEN)
            running.has(running.steps() + 20)
        off = tmp_path / "off.spantrace"
        toggle(cli, server, "--off", CHOSEN)
        with live(server, off, *MANY) as running:
            running.has(cycles=20)
        toggle(cli, server, "--on", CHOSEN)
    assert requests.errors == []
    recording = load(path)
    assert_clean(recording)
    steps = recording.cycles.step[recording.cycles.step > 0]
    assert set(np.diff(steps).tolist()) == {1}, "no step was left out"
    (counted,) = recording.header["optimizations"]
    builds = int(np.sum(recording.spans.name == SPAN_ID["target.metadata.mamba"]))
    assert 0 < counted["hits"] < builds
    assert first > 0
    assert load(off).header["optimizations"] == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--on", "query-build"), "query-build cannot be switched in a server: it fires in the built-in cycle only"),
        (("--off", "nonsense"), "no optimization is called 'nonsense'; spantrace optimizations lists them all"),
        (("--on", CHOSEN, "--off", CHOSEN), f"{CHOSEN} cannot be on and off at once"),
        (("--off", f"{CHOSEN},query-build"), "query-build cannot be switched in a server"),
        ((), "name what to switch: --on IDS, --off IDS, or both"),
    ],
)
def test_what_cannot_be_switched_is_refused_and_nothing_changes(
    server: CpuServer, cli: Cli, arguments: tuple[str, ...], why: str
) -> None:
    refused = cli("toggle", f":{server.port}", *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"spantrace: {why}")
    assert refused.stderr.count("\n") == 1
    assert state(cli, server)["state"] == "on"


def test_a_client_that_is_killed_leaves_no_delay(
    server: CpuServer, witness: AskWitness, cli: Cli, tmp_path: Path
) -> None:
    seer, path = witness(server), tmp_path / "s.spantrace"
    with server.load(1) as requests, switched_off(cli, server, seer):
        command = [PROGRAM, "sensitivity", f":{server.port}", "--span", "schedule", *DELAY, "--blocks", "1000"]
        client = subprocess.Popen([*command, "-o", str(path)], stderr=subprocess.PIPE, text=True)
        try:
            part = path.with_name("s.spantrace.part")
            ended = client.poll
            wait_until(lambda: ended() is not None or (part.exists() and load_windows(part)), "a block of windows")
            assert client.poll() is None, client.communicate()[1]
            assert seer.changed() != []
        finally:
            client.kill()
            client.communicate()
        wait_until(lambda: seer.changed() == [], "the end of all hooks")
        server_path = tmp_path / "after.spantrace"
        with live(server, server_path, *MANY, "--warmup", "0") as running:
            running.has(cycles=40)
    assert requests.errors == []
    assert np.nanmedian(load(server_path).durations("schedule")) < NS / 2


def load_windows(part: Path) -> list[Any]:
    """The windows that a journal holds."""
    try:
        return load(part).header.get(WINDOWS) or []
    except SpantraceError:
        return []


def test_delays_are_refused_by_a_server_that_was_not_started_for_them(
    plain: CpuServer, witness: AskWitness, cli: Cli, tmp_path: Path
) -> None:
    seer = witness(plain)
    seer.remember()
    where = ("-o", str(tmp_path / "s.spantrace"))
    refused = cli("sensitivity", f":{plain.port}", "--span", "schedule", *where)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "this server was not started to be delayed; start it with spantrace serve --allow-delays" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert seer.changed() == []


def test_what_would_be_on_nowhere_is_refused(plain: CpuServer, cli: Cli, tmp_path: Path) -> None:
    """This server runs the other model runner."""
    elsewhere = "bounded-padding"
    said = cli("toggle", f":{plain.port}", "--on", f"{CHOSEN},{elsewhere}")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith(f"spantrace: {elsewhere} would be on nowhere: this server has loaded none of ")
    assert state(cli, plain)["state"] == "applies", "all of it or nothing"
    campaign = cli("ab", f":{plain.port}", "--optimize", elsewhere, "-o", str(tmp_path / "campaign"))
    assert campaign.returncode == 2
    assert "would be on nowhere" in campaign.stderr
    assert not (tmp_path / "campaign").exists()


def test_the_prefix_cache_is_emptied_through_an_idle_engine_only(plain: CpuServer) -> None:
    found = find(f":{plain.port}", Path(os.environ["SPANTRACE_DIR"]))
    prompt = "The quick brown fox jumps over the lazy dog. " * 12

    def hits() -> float:
        before = plain.metrics()["vllm:prefix_cache_hits_total"]
        plain.complete([prompt], max_tokens=4)
        return plain.metrics()["vllm:prefix_cache_hits_total"] - before

    hits()
    assert hits() > 0
    assert reset_prefix_cache(found) == ""
    assert hits() == 0
    with plain.load(4, max_tokens=1800):
        wait_until(lambda: plain.metrics()["vllm:num_requests_running"] > 2, "running requests")
        assert reset_prefix_cache(found) == "the engine has requests; wait until it is idle"
    assert hits() > 0


def test_the_function_behind_it_says_what_it_did(server: CpuServer) -> None:
    found = find(f":{server.port}", Path(os.environ["SPANTRACE_DIR"]))
    server.complete(max_tokens=8)
    off = switch(found, off=[CHOSEN])
    assert (off.on, off.switched_off, off.switched_on) == ((), (CHOSEN,), ())
    assert [one["id"] for one in off.counts] == [CHOSEN]
    on = switch(found, on=[CHOSEN])
    assert (on.on, on.switched_on, on.counts) == ((CHOSEN,), (CHOSEN,), [])
    assert switch(found, on=[CHOSEN]).switched_on == ()
    with pytest.raises(SpantraceError, match="query-build cannot be switched in a server"):
        switch(found, on=["query-build"], off=[CHOSEN])
