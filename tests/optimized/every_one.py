"""Every optimization that fires in the built-in cycle here, and in which drafters."""

from __future__ import annotations

from typing import Any

import pytest

import optimized
from optimized import launching
from optimized.reference_cycle.settings import DRAFTERS
from optimized.seams import Seam

EVERY = optimized.discover()
with pytest.MonkeyPatch.context() as _interpreting:
    _interpreting.setenv(launching.INTERPRET, "1")
    ALL = {name: item for name, item in EVERY.items() if item.seams_at() and not item.unmet()}
"""Those that fire in the built-in cycle here, Triton's kernels interpreted where it is installed; what the others do is
tested on a GPU, on the sources of vLLM and on real servers."""
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
