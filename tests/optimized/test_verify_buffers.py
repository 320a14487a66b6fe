"""States are kept after each token of a step: as many rows a request as are verified, whatever that number is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_cycles import WITH_STATES, expected, prompts_for, run, small  # noqa: E402

import optimized  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.state_layer import States, must_cover  # noqa: E402
from spantrace.errors import SpantraceError  # noqa: E402

TWO_LAYERS = replace(WITH_STATES, state_layers=(0, 1))


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


def started(**changes: Any) -> Cycle:
    settings = small(TWO_LAYERS, batch=3, **changes)
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings), 9)
    return cycle


@pytest.mark.parametrize("draft_length", [1, 3, 5])
@pytest.mark.parametrize("ids", [[], ["verify-k-plus-one"]], ids=["2K rows", "K + 1 rows"])
def test_there_is_a_state_after_every_verified_row(draft_length: int, ids: list[str]) -> None:
    optimized.apply(ids)
    cycle = started(draft_length=draft_length)
    cycle.step()
    rows = draft_length + 1 if ids else max(2 * draft_length, 1)
    states = cycle.target.forward().states
    assert [after.ssm.shape[:2] for after in states] == [(3, rows)] * 2
    assert [after.convolution.shape[:2] for after in states] == [(3, rows)] * 2


@pytest.mark.parametrize("ids", [[], ["verify-k-plus-one"]], ids=["2K rows", "K + 1 rows"])
def test_the_last_draft_can_be_the_one_whose_state_is_kept(ids: list[str]) -> None:
    settings = small(TWO_LAYERS)
    optimized.apply(ids)
    on, _ = run(settings, "forced", [settings.speculative])
    assert on.histogram(settings.speculative)[-1] > 0
    assert on.tokens == expected(settings)


@pytest.mark.parametrize("rows", [4, 6])
def test_buffers_for_another_number_of_rows_are_one_clear_error(rows: int) -> None:
    optimized.apply(["verify-k-plus-one"] if rows == 4 else [])
    cycle = started()
    cycle.step()
    wrong = 10 - rows
    held = cycle.target.prepared()[rows]
    shorter = cycle.target.__class__(cycle.settings)
    shorter.rows_per_request = lambda: wrong  # type: ignore[method-assign]
    shorter.input_prep(cycle.batch)
    shorter.metadata(cycle.batch)
    # The pass of the one number of rows stands where that of the other belongs.
    cycle.target._passes[rows] = held, shorter._passes[wrong][1]
    with pytest.raises(SpantraceError) as refusal:
        cycle.target.forward()
    said = f"a layer kept states after 3 x {wrong} tokens; 3 requests of {rows} tokens a step need 3 x {rows}"
    assert str(refusal.value) == said


def test_both_kinds_of_state_must_cover_the_step() -> None:
    windows, ssm = torch.zeros(2, 4, 5, 3), torch.zeros(2, 4, 1, 2, 2)
    must_cover([States(windows, ssm)], 2, 4)
    must_cover([], 2, 4)
    for wrong in (States(windows[:, 1:], ssm), States(windows, ssm[:, 1:]), States(windows[1:], ssm[1:])):
        with pytest.raises(SpantraceError, match="a layer kept states after"):
            must_cover([States(windows, ssm), wrong], 2, 4)
