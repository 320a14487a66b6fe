"""Plants a fault in the text of a module of kernels."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


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
