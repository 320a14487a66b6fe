"""The reference cycle's tests run on one thread and see the project's own `optimized` package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

# pytest puts tests/ on the path, where this folder would pass for a package of the same name.
sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run in Triton's interpreter, and what a test switched on is off after it."""
    import optimized
    from optimized import launching

    monkeypatch.setenv(launching.INTERPRET, "1")
    yield
    optimized.revert()


@pytest.fixture(scope="session", autouse=True)
def _no_checks_that_are_dropped() -> Iterator[None]:
    """Triton's interpreter works out for each sum whether it overflows, and unless it debugs tells nobody."""
    if find_spec("torch") is None or find_spec("triton") is None:
        yield
        return
    from triton.runtime.interpreter import interpreter_builder

    options = interpreter_builder.options
    assert not options.debug
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "options", replace(options, sanitize_overflow=False))
        yield
