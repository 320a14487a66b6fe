"""Declared memory against the tensors that are alive, which no switch is asked about."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from every_one import ALL  # noqa: E402
from small_cycles import OUTPUT, SMALL, WITH_STATES, prompts_for, small  # noqa: E402

import optimized  # noqa: E402
from optimized.optimization import Optimization  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture(autouse=True)
def _what_was_there_before() -> Iterator[None]:
    """All objects that a test finds are left out of its search, which takes seconds for those of a whole session."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def alive() -> int:
    """Bytes of the storages of all tensors of this test that Python can reach."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def running(settings: Settings) -> Cycle:
    """A cycle with requests, some steps on, so that all of its own buffers are there."""
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings), OUTPUT)
    steps(cycle)
    return cycle


def steps(cycle: Cycle) -> None:
    for _ in range(2):
        cycle.step()


def test_a_tensor_counts_once_and_only_while_it_lives() -> None:
    before = alive()
    tensor = torch.zeros(1000)
    views = [tensor[1:], tensor.view(10, 100)]
    assert alive() - before == 4000
    del tensor
    assert alive() - before == 4000
    views.clear()
    assert alive() == before


@pytest.mark.parametrize("item", ALL.values(), ids=list(ALL))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch": 1, "draft_length": 7, "dtype": "float16"},
        {"drafter": "dspark", "draft_length": 1, "batch": 1},
        {"drafter": "dspark", "batch": 1},
        {"drafter": "eagle", "batch": 2},
    ],
    ids=str,
)
def test_what_is_alive_grows_by_the_declared_memory(item: Optimization, changes: dict[str, Any]) -> None:
    settings = small(replace(WITH_STATES, layers=4), **changes)
    cycle = running(settings)
    before = alive()
    optimized.apply([item.id])
    switch = optimized._applied[item.id].switch
    cycle.forget_graphs()
    steps(cycle)
    assert alive() - before == item.memory(settings) == optimized.allocated(item.id)
    assert item.memory(replace(settings, geometry=SMALL).without_drafter()) == 0
    optimized.revert()
    assert switch.allocated() == optimized.allocated(item.id) == 0
    del switch
    steps(cycle)
    assert alive() == before
