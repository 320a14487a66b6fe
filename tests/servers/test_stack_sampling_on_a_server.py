"""A server whose VLLM_PLUGINS leaves spantrace out is sampled; shares are those that a recording measures."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from conftest import USUAL
from live import LONG_S, PROGRAM, wait_until

from analyzers.sampled import sampled_table
from analyzers.span_table import span_table
from spantrace.loading import load
from spantrace.sampled import samples_of

if TYPE_CHECKING:
    from conftest import Serve

    from tests.conftest import Cli

pytestmark = pytest.mark.long

WITHOUT = USUAL | {"env": {"VLLM_PLUGINS": "vllm_cpu_fixes"}}
NEAR = 0.1
"""Between a sampled share and the measured one of the same seconds, which holds what its hooks cost as well."""


def test_a_server_without_the_plugin_is_sampled(serve: Serve, cli: Cli, tmp_path: Path) -> None:
    server, path = serve(**WITHOUT), tmp_path / "r.spantrace"
    refused = cli("record", f":{server.port}", "-o", str(path))
    assert refused.returncode == 2
    assert "leaves spantrace out" in refused.stderr
    idle = cli("record", "--sample", f":{server.port}", "--seconds", "2", "-o", str(path))
    assert idle.returncode == 3
    assert "lie in a cycle; sample for longer while the server has load" in idle.stderr
    assert list(tmp_path.iterdir()) == []
    engine = server.process("VLLM::EngineCore").pid
    with server.load(4) as load_on_it:
        done = cli("record", "--sample", str(engine), "--seconds", "8", "-o", str(path))
        assert done.returncode == 0, done.stderr
        answered = load_on_it.requests
        wait_until(lambda: load_on_it.requests > answered, "another answer")
    assert load_on_it.errors == []
    recording = load(path)
    assert recording.header["server"]["vllm"] == "0.32.0"
    table = sampled_table(recording)
    assert table is not None
    seen = {row.name for row in table.rows}
    assert seen >= {"cycle", "target.input_prep", "target.forward", "sample", "draft.propose", "draft.forward"}
    assert table.cycles > 100
    report = cli("report", str(path))
    assert report.returncode == 0, report.stderr
    assert "SAMPLED" in report.stdout
    told = json.loads(cli("report", str(path), "--format", "json").stdout)
    functions = {row["name"]: row["functions"] for row in told["table"]["rows"]}
    assert "GPUModelRunner._model_forward" in functions["target.forward"]


@pytest.mark.timed
def test_sampled_shares_are_the_measured_ones(serve: Serve, cli: Cli, tmp_path: Path) -> None:
    server = serve(**USUAL)
    sampled, measured = tmp_path / "sampled.spantrace", tmp_path / "measured.spantrace"
    with server.load(4):
        command = [PROGRAM, "record", "--sample", f":{server.port}", "--seconds", "12", "-o", str(sampled)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as beside:
            options = ("--seconds", "10", "--detail-every", "1")
            done = cli("record", f":{server.port}", *options, "-o", str(measured))
            said = beside.communicate(timeout=LONG_S)[1]
    assert done.returncode == 0, done.stderr
    assert beside.returncode == 0, said
    shares, times = sampled_table(load(sampled)), span_table(load(measured))
    assert shares is not None
    compared = 0
    for name in ("target.forward", "draft.propose", "draft.forward", "draft.context_kv", "sample"):
        share, time = shares.row(name), times.row(name)
        if share is not None and share.share is not None and time is not None and time.host is not None:
            assert share.share.low - NEAR < time.host.share < share.share.high + NEAR, name
            compared += 1
    assert compared >= 3
    forced = cli("compare", str(sampled), str(measured), "--force")
    assert forced.returncode == 0, forced.stderr


def test_ctrl_c_keeps_what_was_sampled_and_leaves_the_server_alone(serve: Serve, tmp_path: Path) -> None:
    server, path = serve(**WITHOUT), tmp_path / "r.spantrace"
    with server.load(4) as load_on_it:
        command = [PROGRAM, "record", "--sample", f":{server.port}", "--seconds", "300", "-o", str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: _looks(process.pid), "py-spy's first look")
            answered = load_on_it.requests
            wait_until(lambda: load_on_it.requests > answered + 8, "eight answers")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=LONG_S)[1]
        assert process.returncode == 0, said
        answered = load_on_it.requests
        wait_until(lambda: load_on_it.requests > answered, "another answer")
    assert load_on_it.errors == []
    samples = samples_of(load(path).header)
    assert samples is not None
    assert samples.seconds < 200


def _looks(recorder: int) -> bool:
    """Whether the py-spy that a recorder started says in its log that it has begun."""
    begun = (one for one in psutil.Process(recorder).children() if one.name() == "py-spy")
    return any("Sampling process" in Path(f"/proc/{one.pid}/fd/2").read_text(errors="replace") for one in begun)
