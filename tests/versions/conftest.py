"""The tests on every supported vLLM, whose files are not even imported unless they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import optimized

if TYPE_CHECKING:
    from mamba_builds import Stock


class NotAskedFor(pytest.Module):
    """A file of tests that says how to run it."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("set SPANTRACE_TEST_VERSIONS=1")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "versions: downloads the sources of every supported vLLM")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    asked = os.environ.get("SPANTRACE_TEST_VERSIONS") == "1"
    return None if asked else NotAskedFor.from_parent(parent, path=module_path)


@pytest.fixture(scope="module", params=optimized.discover()["uniform-decode-metadata"].versions())
def stock(request: pytest.FixtureRequest) -> Stock:
    """Mamba's own builders of each version in which `uniform-decode-metadata` takes their place."""
    from mamba_builds import Stock

    return Stock(request.param)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run in Triton's interpreter."""
    from optimized import launching

    monkeypatch.setenv(launching.INTERPRET, "1")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups each launch that writes ahead is for."""
    from mamba_runners import counted_launches

    return counted_launches(monkeypatch)
