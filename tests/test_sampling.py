"""Detail comes in whole runs, one in N, and in more of them where few cycles are recorded."""

from __future__ import annotations

import pytest

from spantrace.campaign.plan import Arm, Plan
from spantrace.sampling import ENOUGH, EVERY, RUN, every_for, in_detail, next_detail


@pytest.mark.parametrize("every", [1, 2, 5])
def test_one_run_in_n_is_in_detail_the_first_among_them(every: int) -> None:
    seen = [in_detail(cycle, every) for cycle in range(3 * every * RUN)]
    assert seen == ([True] * RUN + [False] * RUN * (every - 1)) * 3


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("step", [1, 7, 8, 40, 41, 81, 12_345])
def test_a_recording_begins_with_a_whole_run_in_detail(step: int, every: int) -> None:
    first = next_detail(step, every)
    assert step <= first < step + RUN * every
    assert all(in_detail(first + later, every) for later in range(RUN))
    assert in_detail(first + RUN, every) is (every == 1)
    assert not in_detail(first - 1, every) or every == 1


def test_a_step_without_a_number_is_in_detail() -> None:
    assert in_detail(0, 5)


@pytest.mark.parametrize("cycles", [1, 99, 100, 199, 200, 450, 500, 1000])
def test_however_few_cycles_are_recorded_enough_of_them_are_in_detail(cycles: int) -> None:
    every = every_for(cycles)
    assert 1 <= every <= EVERY
    assert every == EVERY or every == max(1, cycles // ENOUGH)
    assert sum(in_detail(cycle, every) for cycle in range(cycles)) >= min(cycles, ENOUGH) - RUN


def test_where_nobody_knows_how_many_will_be_recorded_there_are_many() -> None:
    assert every_for(None) == every_for(1000) == EVERY


def test_the_arms_of_a_campaign_are_recorded_alike_and_whole_where_one_is_held_up() -> None:
    stock, held = Arm("stock", ()), Arm("held", (), delay={"sample": 100.0})
    assert Plan((stock,), target=":1", cycles=1000).detail_every == EVERY
    assert Plan((stock,), target=":1", cycles=30).detail_every == 1
    assert Plan((stock, held), target=":1", cycles=1000).detail_every == 1
    assert Plan((stock,), cycles=1000).detail_every == 1, "the built-in cycle"
