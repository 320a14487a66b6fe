"""Plants faults: in the text of a module of kernels or of a function, and in a function from some call on."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


def with_a_fault(kernels: ModuleType, text: str, planted: str, folder: Path) -> ModuleType:
    """The module with one place of its text changed, which must be there."""
    source = Path(kernels.__file__ or "").read_text()
    assert text in source
    path = folder / "faulty_kernels.py"
    path.write_text(source.replace(text, planted))
    spec = spec_from_file_location("faulty_kernels", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rewritten(function: Callable[..., Any], text: str, planted: str) -> Callable[..., Any]:
    """The function with one place of its text changed, which must be there once."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(text) == 1
    made: dict[str, Any] = {}
    exec(source.replace(text, planted), inspect.unwrap(function).__globals__, made)
    found: Callable[..., Any] = made[function.__name__]
    return found


def failing_after(calls: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """The original for so many calls, and then what raises RuntimeError."""
    seen = 0

    def fail(*args: Any, **options: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen > calls:
            raise RuntimeError("planted")
        return original(*args, **options)

    return fail
