"""What a step's first build writes for its KV groups, for every supported vLLM, against full builds of all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mamba_builds import BATCHES, DECODES, GROUPS, Batch, MambaSpec, Stock  # noqa: E402
from mamba_runners import Runner, sides, unlike  # noqa: E402

from optimized.uniform_decode_metadata.sharing import AHEAD, FIRST  # noqa: E402

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("interpreted")]
FOUR, ONE, PADDED = "four decodes", "one decode", "padding"
AHEAD_IN: list[tuple[str, bool]] = [
    (FOUR, False),
    (FOUR, True),
    (ONE, True),
    ("decodes of other lengths", True),
    ("at a block's edge", True),
    (PADDED, True),
    (FOUR, True),
    ("more decodes than a graph holds", False),
    (FOUR, False),
    (FOUR, True),
    ("a prefill after decodes", False),
    (ONE, False),
    (ONE, True),
    (FOUR, False),
    ("a bound above the longest", True),
]
"""Steps, and whether all groups were written by one launch: those of the last step, where as many rows were known."""
modes = pytest.mark.parametrize("mode", ["none", "align"])
runners = pytest.mark.parametrize("which", ["V1", "V2"])


@runners
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_every_field_and_buffer_of_every_step_is_what_full_builds_give(
    stock: Stock, mode: str, graphs: bool, which: str, launches: list[int]
) -> None:
    if mode == "all" and "prev_last_scheduled_idx" not in stock.module["_compute_common_metadata"].__code__.co_varnames:
        pytest.skip("this version has no such mode")
    theirs, ours, switch = sides(stock, mode, graphs, which)
    expected = 0
    for seed, (name, written) in enumerate(AHEAD_IN):
        wanted, got = (side.step(BATCHES[name], seed) for side in (theirs, ours))
        assert unlike(theirs, ours, wanted, got) == [], (seed, name)
        expected += written and graphs and mode != "all" and (which == "V2" or name != PADDED)
        assert len(launches) == expected, (seed, name)
    assert set(launches) <= {GROUPS}
    assert (switch.counts.sorts[FIRST], switch.counts.sorts[AHEAD]) == (expected, expected * (GROUPS - 1))
    assert not switch.counts.errors
    assert switch.counts.hits == GROUPS * sum(name in DECODES for name, _ in AHEAD_IN)


def change(what: str, runner: Runner) -> None:
    """Something else than what was remembered."""
    if what == "a table moved":
        runner.tables[2] = runner.table()
    elif what == "the first one's table moved":
        runner.tables[0] = runner.table()
    elif what == "no graphs":
        for builder in runner.builders:
            builder.compilation_config = runner.stock.group(runner.mode, False).compilation_config
    elif what == "tables of other strides":
        runner.tables[1] = runner.table().T.contiguous().T
    elif what == "a builder replaced":
        runner.builders[2] = runner.builder()
    elif what == "all builders replaced":
        runner.builders = [runner.builder() for _ in runner.builders]
    elif what == "a buffer replaced":
        runner.builders[2].state_indices_tensor_d = runner.builder().state_indices_tensor_d
    else:
        for builder in runner.builders:
            builder.kv_cache_spec = MambaSpec(32)


CHANGES = {
    "a table moved": True,
    "the first one's table moved": True,
    "tables of other strides": True,
    "a builder replaced": True,
    "all builders replaced": False,
    "a buffer replaced": False,
    "larger blocks": False,
    "no graphs": False,
}
"""What changes between two steps, and whether the other groups are written ahead all the same in the second one."""


@runners
@modes
@pytest.mark.parametrize("what", CHANGES)
def test_a_group_that_changed_is_built_as_before_and_known_from_then_on(
    stock: Stock, mode: str, which: str, what: str, launches: list[int]
) -> None:
    theirs, ours, switch = sides(stock, mode, which=which)
    told = [0, 1, 1 + CHANGES[what], 1 + CHANGES[what] + (what != "no graphs")]
    for seed, total in enumerate(told):
        if seed == 2:
            gone = [builder.state_indices_tensor_d for builder in ours.builders]
            before = [buffer.clone() for buffer in gone]
            for side in (theirs, ours):
                change(what, side)
        wanted, got = (side.step(DECODES[FOUR], seed) for side in (theirs, ours))
        assert unlike(theirs, ours, wanted, got) == [], seed
        assert len(launches) == total
    assert [GROUPS - number for number in launches] == [0, *[int("first" in what)] * CHANGES[what], 0][: told[-1]]
    if not CHANGES[what]:
        left = [builder.state_indices_tensor_d for builder in ours.builders]
        pairs = [pair for pair, one in zip(zip(gone, before, strict=True), left, strict=True) if pair[0] is not one]
        assert all(torch.equal(*pair) for pair in pairs), "what is no builder's any more is not written"
    assert not switch.counts.errors


ORDERS: dict[str, list[tuple[int, ...]]] = {
    "a group less": [(0, 1, 2, 3), (0, 1, 3), (0, 1, 3), (0, 1, 2, 3), (0, 1, 2, 3)],
    "a group twice": [(0, 1, 2, 3), (0, 1, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)],
    "the first one twice": [(0, 1, 2, 3), (0, 0, 1, 2, 3), (0, 1, 2, 0, 3), (0, 1, 2, 3)],
    "another one first": [(0, 1, 2, 3), (2, 0, 1, 3), (2, 0, 1, 3), (0, 1, 2, 3)],
    "another order": [(0, 1, 2, 3), (0, 3, 2, 1), (0, 2, 1, 3)],
}


@runners
@modes
@pytest.mark.parametrize("orders", ORDERS)
def test_groups_may_be_built_in_any_order_and_number(stock: Stock, mode: str, which: str, orders: str) -> None:
    theirs, ours, switch = sides(stock, mode, which=which)
    for seed, order in enumerate(ORDERS[orders]):
        wanted, got = (side.step(DECODES[FOUR], seed, order) for side in (theirs, ours))
        assert unlike(theirs, ours, wanted, got, order) == [], (seed, order)
    assert not switch.counts.errors
    assert switch.counts.sorts[AHEAD] > 0
    assert switch.counts.sorts[FIRST] > 0


GIVEN: dict[str, Callable[[Batch], Batch]] = {
    "lengths": lambda batch: batch.replace(seq_lens=batch.seq_lens + 16),
    "flags": lambda batch: batch.replace(is_prefilling=batch.is_prefilling.clone()),
    "a prefill": lambda batch: batch.replace(is_prefilling=torch.tensor([False] * 3 + [True])),
    "a longer query": lambda batch: batch.replace(max_query_len=9),
    "starts": lambda batch: batch.replace(query_start_loc_cpu=batch.query_start_loc_cpu.clone()),
}


@modes
@pytest.mark.parametrize("given", GIVEN)
def test_a_group_that_is_given_something_else_within_a_step_is_built_in_full(
    stock: Stock, mode: str, given: str
) -> None:
    """And the buffers of the groups before it, which are in use by then, are not written again."""
    theirs, ours, switch = sides(stock, mode)
    for seed in range(4):
        found = []
        for side in (theirs, ours):
            batch = side.prepare(DECODES[FOUR], seed)
            found.append([side.one(group, GIVEN[given](batch) if group == 2 else batch) for group in range(GROUPS)])
        assert unlike(theirs, ours, *found) == [], seed
    assert not switch.counts.errors


def test_flags_that_are_kept_in_place_tell_no_step_and_nothing_is_written_ahead(
    stock: Stock, launches: list[int]
) -> None:
    theirs, ours, _ = sides(stock, "align")
    flags = DECODES[FOUR].is_prefilling.clone()
    for seed in range(3):
        batches = [side.prepare(DECODES[FOUR], seed).replace(is_prefilling=flags) for side in (theirs, ours)]
        found = [
            [side.one(group, batch) for group in range(GROUPS)]
            for side, batch in zip((theirs, ours), batches, strict=True)
        ]
        assert unlike(theirs, ours, *found) == []
    assert launches == []
