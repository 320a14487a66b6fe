"""`--load-format spantrace-random` in a real vLLM: the weights mean something, and are the same in every process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("generate_with_random_weights.py")


@pytest.fixture(scope="module")
def configurations(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A target and a drafter of which only the configuration is there."""
    from cpu_server.install import environment

    home = tmp_path_factory.mktemp("models")
    for name in ("target", "dflash"):
        shutil.copytree(environment() / "models" / name, home / name, ignore=shutil.ignore_patterns("*.safetensors"))
    return [str(home / "target"), str(home / "dflash")]


def test_attention_matters_and_two_processes_have_the_same_model(configurations: list[str]) -> None:
    command = [sys.executable, str(SCRIPT), *configurations]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs[0][1][-3000:]
    first, second = (json.loads(printed.splitlines()[-1]) for printed, _ in outputs)
    assert first["silenced"] == 4
    assert first["before"] == second["before"]
    assert len(set(first["before"])) > 5
    assert first["after"] != first["before"]
