"""Every optimization that fires in the built-in cycle here, and in which drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import optimized
from optimized import launching
from optimized.optimization import Optimization
from optimized.reference_cycle.settings import DRAFTERS
from optimized.seams import Seam


def _asks_for_kernels(item: Optimization) -> bool:
    """Whether its folder decides by itself whether kernels run; what only requires them has no other form."""
    folder = Path(optimized.__file__).parent / (item.restores or item.id).replace("-", "_")
    return any(launching.why_no_kernels.__name__ in path.read_text() for path in folder.glob("*.py"))


EVERY = optimized.discover()
with pytest.MonkeyPatch.context() as _interpreting:
    _interpreting.setenv(launching.INTERPRET, "1")
    ALL = {name: item for name, item in EVERY.items() if item.seams_at() and not item.unmet()}
"""Those that fire in the built-in cycle here, Triton's kernels interpreted where it is installed; what the others do is
tested on a GPU, on the sources of vLLM and on real servers."""
with pytest.MonkeyPatch.context() as _not_interpreting:
    _not_interpreting.delenv(launching.INTERPRET, raising=False)
    BOTH_FORMS = [item for item in EVERY.values() if not item.unmet("cpu") and _asks_for_kernels(item)]
"""Those that compute with PyTorch's operations where no kernel runs, and with kernels where one does."""
each = pytest.mark.parametrize("item", ALL.values(), ids=list(ALL))
WITH_DRAFTERS = [(item, drafter) for item in ALL.values() for drafter in DRAFTERS]
FIRING = [(item, drafter) for item, drafter in WITH_DRAFTERS if drafter in item.drafters]
where_it_fires = pytest.mark.parametrize(
    ("item", "drafter"), [pytest.param(item, drafter, id=f"{item.id}-{drafter}") for item, drafter in FIRING]
)
VLLM_ONLY: dict[str, Any] = {
    "seams": (Seam("vllm.x:Y.z", "vllm >=0.26"),),
    "switch": None,
    "vllm_switch": EVERY["query-build"].switch,
    "sources": {"vllm.x:Y.z": {"0.26.0": "0" * 64}},
    "evidence": "tests/servers/test_optimize.py::test_something",
}
"""What makes of a declaration one that has seams in vLLM alone."""
