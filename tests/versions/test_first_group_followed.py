"""A step's first group, whose full build is not run where the last step told of it, for every supported vLLM."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mamba_builds import DECODES, GROUPS, Operations, Stock, equal  # noqa: E402
from mamba_runners import sides, unlike  # noqa: E402

from optimized.uniform_decode_metadata import ahead  # noqa: E402
from optimized.uniform_decode_metadata.sharing import AHEAD, FIRST, SHARED, FirstBuild  # noqa: E402

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("interpreted")]
FOUR, ONE = "four decodes", "one decode"
OF_A_STEP = (
    "num_reqs",
    "num_decodes",
    "num_decode_tokens",
    "query_start_loc_d",
    "seq_lens",
    "state_indices_tensor_d",
    "num_accepted_tokens",
)
"""The fields that a step of decodes changes."""
modes = pytest.mark.parametrize("mode", ["none", "align"])


@modes
def test_it_asks_for_no_operation_but_the_launch(stock: Stock, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours, switch = sides(stock, mode)
    done, launches = [], []
    monkeypatch.setattr(ahead, "launch", lambda _, __, grid, *___, **____: launches.append(grid))
    for seed in range(4):
        batch = ours.prepare(DECODES[FOUR], seed)
        given = batch.replace(block_table_tensor=ours.tables[0][:4])
        accepted = ours.accepted[:4]
        with Operations() as operations:
            ours.method(ours.builders[0], given, num_accepted_tokens=accepted)
        with Operations() as asked:
            assert given.num_actual_tokens == 16
        done.append(operations.done - asked.done)
        for group in range(1, GROUPS):
            ours.one(group, batch)
    print(stock.tree.name, mode, done)
    assert launches == [(GROUPS, 4)] * 3
    assert switch.counts.sorts[FIRST] == 3
    assert done[0] > done[1] > 0, "where the groups lie is told to the kernel once"
    assert done[2:] == [0, 0]


@modes
@pytest.mark.parametrize("left", OF_A_STEP)
def test_a_field_that_is_left_as_it_was_shows(
    stock: Stock, mode: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours, switch = sides(stock, mode)
    right = FirstBuild._begin

    def begin(first: FirstBuild, *given: Any) -> None:
        old = getattr(first.metadata, left)
        right(first, *given)
        setattr(first.metadata, left, old.clone() if torch.is_tensor(old) else old)

    monkeypatch.setattr(FirstBuild, "_begin", begin)
    for seed, name in enumerate((FOUR, ONE)):
        wanted, got = (side.step(DECODES[name], seed) for side in (theirs, ours))
    assert not equal(getattr(wanted[0], left), getattr(got[0], left))
    assert f"0: {left}" in unlike(theirs, ours, wanted, got)
    assert switch.counts.sorts[FIRST] == 1


@modes
def test_what_the_runner_does_with_it_is_seen_by_no_group_and_no_step(stock: Stock, mode: str) -> None:
    theirs, ours, switch = sides(stock, mode)
    for seed in range(4):
        batches = [side.prepare(DECODES[FOUR], seed) for side in (theirs, ours)]
        found: list[list[Any]] = [[], []]
        for group in range(GROUPS):
            for side, batch, metadata in zip((theirs, ours), batches, found, strict=True):
                metadata.append(side.one(group, batch))
            assert unlike(theirs, ours, *([one[-1]] for one in found), order=(group,)) == [], (seed, group)
            for one in found:
                vars(one[-1]).update(dict.fromkeys(OF_A_STEP))
    assert switch.counts.sorts[FIRST] == 3
    assert not switch.counts.errors


@modes
def test_a_failure_builds_it_in_full_and_is_counted(stock: Stock, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours, switch = sides(stock, mode)

    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(FirstBuild, "_begin", fail)
    for seed in range(4):
        wanted, got = (side.step(DECODES[FOUR], seed) for side in (theirs, ours))
        assert unlike(theirs, ours, wanted, got) == [], seed
    assert switch.counts.errors == {"RuntimeError: planted": 3}
    assert switch.counts.hits == 4 * GROUPS
    assert (switch.counts.sorts[FIRST], switch.counts.sorts[SHARED]) == (0, 4 * (GROUPS - 1))


@modes
def test_columns_of_an_earlier_step_are_read_by_no_group(stock: Stock, mode: str) -> None:
    """A group that the launch did not write for chooses this step's, whoever built the first one."""
    theirs, ours, switch = sides(stock, mode)
    for seed in range(5):
        if seed % 2:
            ours.tables[3], theirs.tables[3] = ours.table(), theirs.table()
        batch = DECODES[FOUR].replace(seq_lens=DECODES[FOUR].seq_lens + 16 * seed)
        wanted, got = (side.step(batch, seed) for side in (theirs, ours))
        assert unlike(theirs, ours, wanted, got) == [], seed
    assert (switch.counts.sorts[FIRST], switch.counts.sorts[AHEAD]) == (4, 4 * (GROUPS - 1) - 2)
    assert not switch.counts.errors
