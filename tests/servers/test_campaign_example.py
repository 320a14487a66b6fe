"""examples/campaign/run.py on a real server, with its small plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Serve

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
BLOCK = 32


def test_one_command_measures_the_plan_on_a_running_server_and_its_gates_pass(serve: Serve, tmp_path: Path) -> None:
    server = serve(method="dflash", acceptance=(1.0, 1.0, 1.0), optimize="keep-last-block")
    arguments = ["examples/campaign/cpu.toml", "--port", str(server.port), "--out", str(tmp_path), "--repeats", "4"]
    command = [sys.executable, "examples/campaign/run.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=350, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "campaign.json").read_text())
    assert [gate["outcome"] for gate in found["gates"]] == ["pass", "pass"]
    windows = found["campaign"]["done"]
    assert len(windows) == 12
    (stock,), kept = (
        {one["load"]["cached_tokens"] for one in windows if one["arm"] == arm} for arm in ("stock", "keep-last-block")
    )
    assert kept == {stock + BLOCK}
    assert all(not one["notes"] for one in windows)
    assert (tmp_path / "campaign.md").read_text() in done.stdout
    assert "keep-last-block" in (tmp_path / "optimizations.md").read_text()
