"""What the KV-cache groups of a step share, for every supported vLLM, against a full build of each group."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields
from types import MethodType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mamba_builds import (  # noqa: E402
    BATCHES,
    BLOCKS,
    DECODES,
    GROUPS,
    ONE_KERNEL,
    OTHERS,
    Batch,
    MambaSpec,
    Operations,
    Side,
    Stock,
    accepted_of,
    equal,
)

from optimized.uniform_decode_metadata.sharing import SHARED, FirstBuild  # noqa: E402
from optimized.uniform_decode_metadata.vllm import Shortcut  # noqa: E402

pytestmark = pytest.mark.versions


def copy_of(value: Any) -> Any:
    return value.clone() if torch.is_tensor(value) else value


def as_viewed_anew(batch: Batch) -> Batch:
    """The same memory through other tensor objects, as a runner slices them for each group."""
    names = ("query_start_loc_cpu", "seq_lens", "is_prefilling")
    return batch.replace(**{name: getattr(batch, name)[:] for name in names})


def different(wanted: Any, got: Any) -> list[str]:
    assert type(wanted) is type(got)
    return [one.name for one in fields(wanted) if not equal(getattr(wanted, one.name), getattr(got, one.name))]


def homes(metadata: Any, builder: Any, batch: Batch, accepted: Any) -> dict[str, str]:
    """Whose memory each tensor of the metadata is: the group's own buffer, the runner's tensor, or new."""
    known = {value.untyped_storage().data_ptr(): name for name, value in vars(batch).items() if torch.is_tensor(value)}
    known[accepted.untyped_storage().data_ptr()] = "accepted"
    known |= {value.data_ptr(): f"own {name}" for name, value in vars(builder).items() if torch.is_tensor(value)}
    tensors = {one.name: getattr(metadata, one.name) for one in fields(metadata)}
    tensors = {name: value for name, value in tensors.items() if torch.is_tensor(value) and value.numel()}
    return {name: known.get(value.untyped_storage().data_ptr(), "new") for name, value in tensors.items()}


modes = pytest.mark.parametrize("mode", ["none", "align", "all"])
graphs = pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])


@graphs
@modes
def test_every_field_of_every_group_is_what_its_own_build_gives(stock: Stock, mode: str, graphs: bool) -> None:
    if mode == "all" and "prev_last_scheduled_idx" not in stock.module["_compute_common_metadata"].__code__.co_varnames:
        pytest.skip("this version has no such mode")
    switch = Shortcut()
    theirs, ours = Side(stock, mode, graphs), Side(stock, mode, graphs, switch)
    for name, batch in BATCHES.items():
        accepted = accepted_of(batch)
        before = {**{name: copy_of(value) for name, value in vars(batch).items()}, "accepted": accepted.clone()}
        for group in range(GROUPS):
            viewed = as_viewed_anew(batch) if group % 2 else batch
            wanted = theirs.one(group, batch, accepted)
            got = ours.one(group, viewed, accepted[:])
            assert different(wanted, got) == [], (name, group)
            where = [
                homes(*said, batch, accepted)
                for said in ((wanted, theirs.builders[group]), (got, ours.builders[group]))
            ]
            assert where[0] == where[1], (name, group)
        assert equal(vars(batch) | {"accepted": accepted}, before), name
    assert not switch.counts.errors
    assert switch.counts.hits == GROUPS * len(DECODES)
    assert switch.counts.fallbacks.total() == GROUPS * len(OTHERS)
    assert switch.counts.sorts[SHARED] == (0 if mode == "all" else (GROUPS - 1) * len(DECODES))


@graphs
@pytest.mark.parametrize("mode", ["none", "align"])
@pytest.mark.parametrize("flags", ["anew", "in place"])
def test_no_step_sees_another_ones(stock: Stock, mode: str, graphs: bool, flags: str) -> None:
    """The runner writes each step's lengths, starts and accepted tokens into the same tensors."""
    switch, batch = Shortcut(), copy(DECODES["four decodes"])
    accepted = accepted_of(batch)
    batch.seq_lens, batch.block_table_tensor = batch.seq_lens.clone(), batch.block_table_tensor.clone()
    theirs, ours = Side(stock, mode, graphs), Side(stock, mode, graphs, switch)
    for step in range(6):
        if flags == "anew":
            batch = batch.replace(is_prefilling=batch.is_prefilling.clone())
        batch.seq_lens += torch.tensor([1, 4, 2, 3], dtype=torch.int32)
        batch.block_table_tensor += step
        accepted.copy_(accepted.roll(1))
        wanted, got = theirs.build(batch, accepted), ours.build(batch, accepted)
        assert [different(*pair) for pair in zip(wanted, got, strict=True)] == [[]] * GROUPS
    assert switch.counts.sorts[SHARED] == 6 * (GROUPS - 1)


@pytest.mark.parametrize("flags", ["anew", "in place"])
def test_a_step_that_another_group_begins_is_built_anew(stock: Stock, flags: str) -> None:
    """Flags made anew tell the step; with the same flags, that the group has had its result."""
    switch, batch, taken = Shortcut(), copy(DECODES["four decodes"]), range(1 if flags == "anew" else 2)
    accepted, lengths = accepted_of(batch), batch.seq_lens.clone()
    batch.seq_lens = lengths
    theirs, ours = Side(stock, "align", True), Side(stock, "align", True, switch)
    ours.build(batch, accepted, taken)
    lengths += 17
    following = batch.replace(is_prefilling=batch.is_prefilling.clone()) if flags == "anew" else batch
    assert different(theirs.one(1, following, accepted), ours.one(1, following, accepted)) == []
    assert switch.counts.sorts.total() == len(taken) - 1


def test_what_the_runner_does_with_the_first_result_is_not_seen_by_the_others(stock: Stock) -> None:
    batch, theirs, ours = DECODES["four decodes"], Side(stock, "none", True), Side(stock, "none", True, Shortcut())
    accepted = accepted_of(batch)
    ours.one(0, batch, accepted).query_start_loc_d = None
    assert different(theirs.one(1, batch, accepted), ours.one(1, batch, accepted)) == []


class WithPadding(Batch):
    """A batch that counts one token more than its queries have."""

    num_actual_tokens = property(lambda self: 1 + int(self.query_start_loc_cpu[-1]))


UNLIKE: dict[str, Callable[[Any, Batch, Any], tuple[Batch, Any]]] = {
    "other flags": lambda _, batch, accepted: (batch.replace(is_prefilling=batch.is_prefilling.clone()), accepted),
    "other lengths": lambda _, batch, accepted: (batch.replace(seq_lens=batch.seq_lens + 20), accepted),
    "other starts": lambda _, batch, accepted: (
        batch.replace(query_start_loc_cpu=batch.query_start_loc_cpu.clone()),
        accepted,
    ),
    "other accepted tokens": lambda _, batch, accepted: (batch, accepted.flip(0)),
    "no accepted tokens": lambda _, batch, accepted: (batch, None),
    "fewer requests": lambda _, batch, accepted: (Batch.of(*[(1, 20, False)] * 3), accepted[:3]),
    "more tokens": lambda _, batch, accepted: (WithPadding(**vars(batch)), accepted),
    "a prefill": lambda _, batch, accepted: (batch.replace(is_prefilling=torch.tensor([False] * 3 + [True])), accepted),
    "a longer query": lambda _, batch, accepted: (batch.replace(max_query_len=9), accepted),
    "larger blocks": lambda builder, *given: (setattr(builder, "kv_cache_spec", MambaSpec(32)), given)[1],
    "more state blocks": lambda builder, *given: (setattr(builder, "kv_cache_spec", MambaSpec(16, 5)), given)[1],
    "another threshold": lambda builder, *given: (setattr(builder, "reorder_batch_threshold", 5), given)[1],
}


@pytest.mark.parametrize("unlike", UNLIKE)
@pytest.mark.parametrize("mode", ["none", "align"])
def test_a_group_that_differs_is_built_by_itself(stock: Stock, mode: str, unlike: str) -> None:
    switch, batch = Shortcut(), DECODES["four decodes"]
    accepted = accepted_of(batch)
    theirs, ours = Side(stock, mode, True), Side(stock, mode, True, switch)
    ours.one(0, batch, accepted)
    wanted, got = (side.one(1, *UNLIKE[unlike](side.builders[1], batch, accepted)) for side in (theirs, ours))
    assert different(wanted, got) == []
    assert not switch.counts.sorts
    assert not switch.counts.errors


@pytest.mark.parametrize("changed", [{"use_replayssm": True}, {"use_spec_decode": False}], ids=["ring", "no drafts"])
def test_what_more_than_views_depends_on_is_not_shared(stock: Stock, changed: dict[str, bool]) -> None:
    batch, (plain, later, other) = DECODES["four decodes"], (stock.group("none", True) for _ in range(3))
    accepted = accepted_of(batch)
    metadata = stock.module["_compute_common_metadata"](plain, batch, num_accepted_tokens=accepted)
    first = FirstBuild.of(plain, batch, accepted, metadata, None)
    assert first is not None
    assert first.serves(later, batch, accepted)
    vars(other).update(changed)
    assert not first.serves(other, batch, accepted)
    assert FirstBuild.of(other, batch, accepted, metadata, None) is None


def test_a_builder_with_a_way_of_its_own_into_its_buffers_is_left_alone(stock: Stock) -> None:
    switch, batch = Shortcut(), DECODES["four decodes"]
    side = Side(stock, "none", True, switch)
    for builder in side.builders:
        builder._update_metadata_for_cudagraph_capture = MethodType(lambda _, metadata: ("own", metadata), builder)
    assert [way for way, _ in side.build(batch, accepted_of(batch))] == ["own"] * GROUPS
    assert not switch.counts.sorts
    assert not switch.counts.errors


def test_a_failure_of_ours_builds_in_full_and_is_counted(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    switch, batch = Shortcut(), DECODES["four decodes"]
    theirs, ours = Side(stock, "align", True), Side(stock, "align", True, switch)
    take = FirstBuild.take

    def fails_late(first: FirstBuild, builder: Any, table: Any, blocks: Any) -> None:
        take(first, builder, table.flip(0), lambda: blocks().flip(0))
        raise RuntimeError("planted")

    monkeypatch.setattr(FirstBuild, "take", fails_late)
    accepted = accepted_of(batch)
    wanted, got = theirs.build(batch, accepted), ours.build(batch, accepted)
    assert [different(*pair) for pair in zip(wanted, got, strict=True)] == [[]] * GROUPS
    assert (switch.counts.hits, switch.counts.errors) == (GROUPS, {"RuntimeError: planted": GROUPS - 1})
    assert not switch.counts.sorts


@pytest.mark.parametrize("fault", ["blocks of another group", "another step's columns", "one buffer for all"])
def test_a_result_that_is_shared_wrongly_shows(stock: Stock, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch, batch = Shortcut(), copy(DECODES["four decodes"])
    accepted, take = accepted_of(batch), FirstBuild.take
    theirs, ours = Side(stock, "align", True), Side(stock, "align", True, switch)
    if fault == "blocks of another group":
        monkeypatch.setattr(FirstBuild, "take", lambda first, *_: first.metadata)
    elif fault == "one buffer for all":
        monkeypatch.setattr(FirstBuild, "take", lambda first, _, *given: take(first, ours.builders[0], *given))
    else:
        monkeypatch.setattr(FirstBuild, "serves", lambda *_: True)
        ours.build(batch, accepted)
        if stock.tree.name == ONE_KERNEL:
            pytest.skip("this version chooses no columns that could be kept")
        batch.seq_lens = batch.seq_lens + 17
    wanted, got = theirs.build(batch, accepted), ours.build(batch, accepted)
    assert any(different(*pair) for pair in zip(wanted, got, strict=True))


@pytest.mark.parametrize("mode", ["none", "align"])
def test_a_later_group_takes_fewer_operations_than_the_first(stock: Stock, mode: str) -> None:
    batch, done = DECODES["four decodes"], {}
    accepted = accepted_of(batch)
    theirs, ours = Side(stock, mode, True), Side(stock, mode, True, Shortcut())
    for name, side, group in (("stock", theirs, 0), ("first", ours, 0), ("later", ours, 1)):
        with Operations() as operations:
            side.one(group, batch, accepted)
        done[name] = operations.done
    print(stock.tree.name, mode, done)
    assert done["later"] < done["first"] < done["stock"]


def test_what_is_kept_of_a_step_is_counted_and_dropped(stock: Stock) -> None:
    switch, batch = Shortcut(), DECODES["four decodes"]
    side = Side(stock, "align", True, switch)
    side.build(batch, accepted_of(batch))
    rows = 0 if stock.tree.name == ONE_KERNEL else (4 + 8 * batch.num_reqs) * 4
    assert switch.allocated() == rows
    prefill = OTHERS["a prefill"]
    side.build(prefill, accepted_of(prefill))
    assert switch.allocated() == min(rows, 4 * 4), "the offsets are left"
    switch.close()
    assert switch.allocated() == 0
    side.build(batch.replace(block_table_tensor=torch.zeros(4, BLOCKS, dtype=torch.int32)), accepted_of(batch))
    assert switch.counts.sorts[SHARED] == 2 * (GROUPS - 1)
