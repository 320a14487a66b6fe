"""The tests on a GPU, whose files are not even imported where there is none.

They see the project's own `optimized` package, whose name a folder of the tests bears as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


class WithoutGpu(pytest.Module):
    """A file of tests that says what they need."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("needs PyTorch and an NVIDIA GPU")


@cache
def usable() -> bool:
    """Whether PyTorch is installed and sees a GPU."""
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if usable() else WithoutGpu.from_parent(parent, path=module_path)
