"""The tests on every supported vLLM, whose files are not even imported unless they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


class NotAskedFor(pytest.Module):
    """A file of tests that says how to run it."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("set SPANTRACE_TEST_VERSIONS=1")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "versions: downloads the sources of every supported vLLM")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    asked = os.environ.get("SPANTRACE_TEST_VERSIONS") == "1"
    return None if asked else NotAskedFor.from_parent(parent, path=module_path)
