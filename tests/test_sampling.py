"""Detail comes in whole runs, one in N, and is asked for again where it could not be switched."""

from __future__ import annotations

import pytest

from spantrace.sampling import RUN, Detail


@pytest.mark.parametrize("every", [1, 2, 5])
def test_one_run_in_n_is_in_detail_the_first_among_them(every: int) -> None:
    switched: list[bool] = []
    detail = Detail(every, lambda on: switched.append(on) or True)
    seen = [detail.new_cycle() for _ in range(3 * every * RUN)]
    assert seen == ([True] * RUN + [False] * RUN * (every - 1)) * 3
    assert switched == ([] if every == 1 else [False, True] * 2 + [False])


def test_a_switch_that_fails_is_tried_again_at_the_next_cycle() -> None:
    answers = iter([False, False, True])
    detail = Detail(2, lambda on: next(answers))
    assert [detail.new_cycle() for _ in range(RUN + 3)] == [True] * (RUN + 2) + [False]
