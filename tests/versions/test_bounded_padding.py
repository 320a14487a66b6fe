"""A drafter's inputs by every supported vLLM's own kernels: whole buffers after every step, with it and without."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sources import printed_by, source_tree

import optimized
from optimized.launching import INTERPRET

pytestmark = [
    pytest.mark.versions,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM's dependencies are not installed here"),
]
SCRIPT = Path(__file__).with_name("padding_of_this_version.py")
BACKEND = Path(__file__).parents[2] / "examples" / "cpu_server" / "interpreter"
ID = "bounded-padding"
VERSIONS = optimized.discover()[ID].versions()
OF_THE_DRAFTER = {"sample_indices", "sample_pos", "sample_idx_mapping", "query_start_loc", "seq_lens"}
REASONS = {"the first call for this buffer", "another number of requests", "the step fills the buffers"}
Facts = dict[str, Any]


@cache
def facts_of(version: str) -> Facts:
    """What that version's kernels left, interpreted by Triton on a CPU."""
    return printed_by(SCRIPT, version, str(source_tree(version)), on_path=[BACKEND], **{INTERPRET: "1"})


@pytest.fixture(params=VERSIONS)
def prepared(request: pytest.FixtureRequest) -> Facts:
    return facts_of(request.param)


def differing(one: Facts) -> set[str]:
    """The buffers that are unlike stock's after some step."""
    return {name for _, name in one["differ"]}


def test_every_version_is_tried() -> None:
    assert VERSIONS == ["0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]


@pytest.mark.parametrize("situation", ["dflash", "two groups", "dspark", "no fault"])
def test_every_buffer_is_as_stock_leaves_it_after_every_step(prepared: Facts, situation: str) -> None:
    one = prepared[situation]
    assert one["differ"] == []
    assert one["counts"]["hits"] == one["hits"] > 0
    assert one["counts"]["errors"] == 0
    assert one["counts"]["fallbacks"] > 0
    assert set(one["counts"]["reasons"]) <= REASONS


def test_many_steps_are_carried(prepared: Facts) -> None:
    assert prepared["dflash"]["steps"] >= 24
    assert prepared["dflash"]["hits"] >= 10


def test_a_bound_that_is_too_small_shows_in_the_slots_that_the_target_wrote(prepared: Facts) -> None:
    assert "slots" in differing(prepared["one unit too few"])


def test_a_capture_that_is_not_noticed_shows(prepared: Facts) -> None:
    assert {"query_start_loc", "seq_lens"} <= differing(prepared["nothing is forgotten"])


def test_another_number_of_requests_that_is_not_noticed_shows(prepared: Facts) -> None:
    assert differing(prepared["any number of requests"]) >= OF_THE_DRAFTER


def test_a_failure_of_ours_leaves_all_as_stock_does_and_is_counted(prepared: Facts) -> None:
    one = prepared["an error"]
    assert one["differ"] == []
    assert (one["counts"]["hits"], one["counts"]["fallbacks"]) == (0, 0)
    assert one["counts"]["reasons"] == {"RuntimeError: planted": one["counts"]["errors"]}
    assert one["counts"]["errors"] > 0
