"""Modules whose import is awaited are imported as ever, and the callback comes once they have run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spantrace.vllm_adapter import after_import as module
from spantrace.vllm_adapter.after_import import after_import


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "awaited"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "inner.py").write_text("value = 1\n")
    (folder / "broken.py").write_text("raise RuntimeError('its own')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "awaited"]:
        del sys.modules[name]
    module._awaiting.awaited.clear()
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not module._awaiting]


def test_a_callback_comes_once_after_the_module_has_run() -> None:
    seen: list[object] = []
    for _ in range(2):
        after_import("awaited.inner", lambda: seen.append(sys.modules["awaited.inner"].value))
    assert seen == []
    inner = importlib.import_module("awaited.inner")
    assert seen == [1, 1]
    importlib.reload(inner)
    assert seen == [1, 1]
    assert inner.__loader__.get_source("awaited.inner") == "value = 1\n"
    assert type(inner.__loader__).__name__ == "SourceFileLoader"


def test_what_has_been_imported_is_not_awaited() -> None:
    importlib.import_module("awaited.inner")
    seen: list[int] = []
    after_import("awaited.inner", lambda: seen.append(1))
    assert seen == [1]
    assert module._awaiting not in sys.meta_path


def test_a_module_that_fails_fails_as_ever_and_nobody_is_called() -> None:
    seen: list[int] = []
    after_import("awaited.broken", lambda: seen.append(1))
    after_import("awaited.absent", lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="its own"):
        importlib.import_module("awaited.broken")
    with pytest.raises(ModuleNotFoundError, match=r"awaited\.absent"):
        importlib.import_module("awaited.absent")
    assert seen == []


def test_a_module_may_be_imported_again_by_the_callback() -> None:
    seen: list[object] = []
    after_import("awaited.inner", lambda: seen.append(importlib.import_module("awaited.inner").value))
    importlib.import_module("awaited.inner")
    assert seen == [1]
