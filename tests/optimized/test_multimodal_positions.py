"""A runner that gives positions by time, height and width: the drafters turn by time alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_cycles import prompts_for, small  # noqa: E402

from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.rope import temporal  # noqa: E402


def test_time_is_the_first_of_three_rows_and_other_shapes_are_laid_flat() -> None:
    rows = torch.arange(15).view(3, 1, 5)
    assert temporal(rows).tolist() == [0, 1, 2, 3, 4]
    assert temporal(rows[:, 0]).tolist() == list(range(15))
    assert temporal(rows[1]).tolist() == temporal(rows[1, 0]).tolist() == [5, 6, 7, 8, 9]


def drafted(drafter: str, positions: Any = None) -> tuple[Any, Any]:
    """The logits of a cycle's draft, drawn again with other positions if any, and the positions of its block."""
    settings = small(drafter=drafter)
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings), 9)
    cycle.step()
    assert cycle.drafter is not None
    own = cycle.drafter.queries.positions.clone()
    if positions is not None:
        cycle.drafter.queries = replace(cycle.drafter.queries, positions=positions(own))
    return cycle.drafter.draft_block().logits, own


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle"])
def test_height_and_width_change_no_bit_of_a_draft_and_time_does(drafter: str) -> None:
    def rows(*given: Any) -> Any:
        return torch.stack([part.flatten() for part in given]).unsqueeze(1)

    stock, own = drafted(drafter)
    assert rows(own, own, own).shape == (3, 1, own.numel())
    for others in ((own + 1, own * 2), (torch.zeros_like(own), own)):
        logits, _ = drafted(drafter, lambda own, others=others: rows(own, *others))
        assert torch.equal(logits, stock)
    late, _ = drafted(drafter, lambda own: rows(own + 1 + torch.arange(own.shape[1]), own, own))
    assert not torch.equal(late, stock)
