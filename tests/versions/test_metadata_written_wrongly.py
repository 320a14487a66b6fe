"""What is written ahead wrongly, what it costs a later group, and where it is not done, for every supported vLLM."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mamba_builds import DECODES, GROUPS, Operations, Stock  # noqa: E402
from mamba_runners import sides, unlike  # noqa: E402

from optimized import launching  # noqa: E402
from optimized.uniform_decode_metadata import FIELDS, ahead, sharing  # noqa: E402
from optimized.uniform_decode_metadata.ahead import Ahead, Group  # noqa: E402
from optimized.uniform_decode_metadata.sharing import AHEAD, FIRST, SHARED  # noqa: E402

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("interpreted")]
FOUR = "four decodes"


def plant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write, find = Ahead.write, Ahead._find
    if fault == "another group's table":

        def mixed_up(it: Ahead, groups: Any) -> Any:
            found = find(it, groups).clone()
            found[:, 0] = found[:, 0].roll(1)
            return found

        monkeypatch.setattr(Ahead, "_find", mixed_up)
    elif fault == "lengths of the step before":
        monkeypatch.setattr(Ahead, "write", lambda it, groups, lengths, *rest: write(it, groups, lengths - 16, *rest))
    elif fault == "accepted tokens of another request":
        monkeypatch.setattr(
            Ahead, "write", lambda it, groups, lengths, one, size: write(it, groups, lengths, 1 + one, size)
        )
    elif fault == "a group missing":
        monkeypatch.setattr(Ahead, "write", lambda it, groups, *rest: write(it, groups[:-1], *rest))
    elif fault == "the first group missing":
        monkeypatch.setattr(Ahead, "write", lambda it, groups, *rest: write(it, groups[1:], *rest))
    elif "moved" in fault:
        monkeypatch.setattr(Group, "is_given", lambda *_: True)
    elif fault == "a step that is none":
        monkeypatch.setattr(sharing, "_write", lambda *_: True)
    else:
        right = Group.of.__func__  # type: ignore[attr-defined]
        final = lambda cls, *given: setattr(made := right(cls, *given), "padding", True) or made  # noqa: E731
        monkeypatch.setattr(Group, "of", classmethod(final))


FAULTS = (
    "another group's table",
    "lengths of the step before",
    "accepted tokens of another request",
    "a group missing",
    "the first group missing",
    "a table that moved",
    "the first one's table that moved",
    "a step that is none",
    "padding before it is written",
)
SPOILT = {
    "a group missing": {GROUPS - 1},
    "the first group missing": {0},
    "a table that moved": {1},
    "the first one's table that moved": {0},
    "padding before it is written": set(range(1, GROUPS)),
}
"""The groups that a fault spoils, where not all: the padding of the first one is written before its build."""


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_written_wrongly_shows(stock: Stock, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours, switch = sides(stock, "align", which="V1")
    plant(fault, monkeypatch)
    padding = fault == "padding before it is written"
    for seed in range(2):
        if "moved" in fault:
            (moved,) = SPOILT[fault]
            ours.tables[moved] = ours.table()
        batch = DECODES["padding" if padding and seed else FOUR]
        wanted, got = (side.step(batch, seed) for side in (theirs, ours))
    spoilt = {int(name.partition(":")[0]) for name in unlike(theirs, ours, wanted, got)}
    assert spoilt == SPOILT.get(fault, set(range(GROUPS)))
    assert not switch.counts.errors
    assert (switch.counts.sorts[FIRST], switch.counts.sorts[AHEAD]) == (1, GROUPS - 1)


@pytest.mark.parametrize("mode", ["none", "align"])
def test_a_later_group_asks_for_nothing_but_its_metadata(stock: Stock, mode: str, launches: list[int]) -> None:
    _, ours, switch = sides(stock, mode)
    places, done = [], []
    for seed in range(4):
        batch = ours.prepare(DECODES[FOUR], seed)
        ours.one(0, batch)
        places.append(switch.ahead._addresses)
        given = batch.replace(block_table_tensor=ours.tables[1][:4])
        accepted = ours.accepted[:4]
        with Operations() as operations:
            ours.method(ours.builders[1], given, num_accepted_tokens=accepted)
        with Operations() as asked:
            assert given.num_actual_tokens == 16
        done.append(operations.done - asked.done)
        for group in (2, 3):
            ours.one(group, batch)
    print(stock.tree.name, mode, done)
    assert done[0] > done[1] == 2, "its two views are sliced when they are first asked for"
    assert done[2:] == [0, 0]
    assert launches == [GROUPS] * 3, "one a step"
    assert places[0] is None
    assert places[1] is places[2] is places[3] is not None
    assert switch.ahead.nbytes() == 8 * FIELDS * GROUPS
    switch.close()
    assert switch.allocated() == 0
    ours.step(DECODES[FOUR], 9)
    assert len(launches) == 3, "what was closed is forgotten"


def test_a_launch_that_fails_is_counted_once_and_not_tried_again(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours, switch = sides(stock, "align")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(ahead, "launch", fail)
    for seed in range(4):
        wanted, got = (side.step(DECODES[FOUR], seed) for side in (theirs, ours))
        assert unlike(theirs, ours, wanted, got) == []
    assert switch.counts.errors == {"RuntimeError: planted": 1}
    assert (switch.counts.sorts[AHEAD], switch.counts.sorts[SHARED]) == (0, 4 * (GROUPS - 1))


def test_a_cpu_that_is_not_told_to_interpret_launches_nothing(
    stock: Stock, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(launching.INTERPRET)
    _, ours, switch = sides(stock, "align")
    for seed in range(3):
        ours.step(DECODES[FOUR], seed)
    assert launches == []
    assert (switch.counts.sorts[AHEAD], switch.counts.sorts[SHARED]) == (0, 3 * (GROUPS - 1))
    assert switch._first is not None
    assert not switch._first.later, "nothing is remembered that is of no use"
