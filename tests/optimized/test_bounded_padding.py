"""How far a drafter's inputs are padded, when all of it is written, and what shows where too little is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from optimized.bounded_padding import padding  # noqa: E402
from optimized.bounded_padding.padding import BY_NAME, FIRST, FULL, ODD, OTHER, Known, Padding, Places, smaller  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402

ITEM = optimized.discover()["bounded-padding"]
CASES = {case.name: case for case in ITEM.cases()}
REQUESTS, TOKENS, QUERIES = 64, 256, 4
Patch = pytest.MonkeyPatch


class Drafter:
    """Buffers of a drafter, and the bounds of each call that reaches the original."""

    def __init__(self, switch: Padding, tokens: int = TOKENS, requests: int = REQUESTS) -> None:
        self.buffers = [SimpleNamespace() for _ in range(4)]
        self.slots = torch.zeros(2, tokens, dtype=torch.int64)
        self.most, self.given = (requests, tokens), list[tuple[int, int]]()
        self.fails = False
        self.prepare = switch.preparing(self._original)

    def _original(
        self,
        input_buffers: Any,
        query_slot_mapping: Any,
        sample_indices: Any,
        sample_pos: Any,
        sample_idx_mapping: Any,
        input_batch: Any,
        num_query_per_req: int,
        num_speculative_steps: int,
        max_num_reqs: int,
        max_num_tokens: int,
        sample_from_anchor: bool = False,
        num_reqs_override: int | None = None,
    ) -> str:
        self.given.append((max_num_reqs, max_num_tokens))
        if self.fails:
            raise RuntimeError("planted")
        return "prepared"

    def call(self, requests: int, tokens: int = 0, group: int = 0, override: int | None = None) -> tuple[int, int]:
        """One call; returns the bounds that the original got."""
        batch = SimpleNamespace(num_reqs=requests, num_tokens_after_padding=tokens or requests * QUERIES)
        first, *sampled = self.buffers
        rest = () if override is None else (False, override)
        said = self.prepare(first, self.slots[group], *sampled, batch, QUERIES, QUERIES - 1, *self.most, *rest)
        assert said == "prepared"
        return self.given[-1]


def reasons(switch: Padding) -> dict[str, int]:
    return dict(switch.counts.fallbacks)


def test_a_bound_covers_what_is_needed_and_makes_no_new_variant_of_the_kernel() -> None:
    assert [smaller(256, needed) for needed in (1, 16, 17, 250, 999)] == [16, 16, 32, 256, 256]
    assert [smaller(most, 3) for most in (16, 32, 8, 1, 250)] == [16, 16, 8, 1, 250]


def test_as_many_requests_as_before_are_padded_as_far_as_the_step_reaches() -> None:
    switch = Padding()
    drafter = Drafter(switch)
    whole = (REQUESTS, TOKENS)
    found = [
        drafter.call(5),
        drafter.call(5),
        drafter.call(5, 100),
        drafter.call(17),
        drafter.call(17),
        drafter.call(5),
    ]
    assert found == [whole, (16, 32), (16, 112), whole, (32, 80), whole]
    assert switch.counts.hits == 3
    assert reasons(switch) == {FIRST: 1, OTHER: 2}


def test_the_number_of_requests_may_be_given_beside_the_batch() -> None:
    drafter = Drafter(Padding())
    assert [drafter.call(9, override=3), drafter.call(9, override=3)] == [(REQUESTS, TOKENS), (16, 48)]
    assert drafter.call(9) == (REQUESTS, TOKENS)


def test_a_bound_that_cannot_be_smaller_is_left_and_is_no_hit() -> None:
    for tokens, target, reason in ((250, 0, ODD), (TOKENS, TOKENS, FULL)):
        switch = Padding()
        drafter = Drafter(switch, tokens)
        assert [drafter.call(5, target) for _ in range(3)] == [(REQUESTS, tokens)] * 3
        assert (switch.counts.hits, reasons(switch)) == (0, {FIRST: 1, reason: 2})
    assert Drafter(switch, requests=7).call(2)[0] == 7


def test_groups_share_what_the_drafter_has_and_each_has_its_own_row_of_slots() -> None:
    switch, whole = Padding(), (REQUESTS, TOKENS)
    drafter = Drafter(switch)
    assert [drafter.call(5, group=group) for group in (0, 1, 0, 1)] == [whole, whole, (16, 32), (16, 32)]
    assert drafter.call(6, group=0) == whole
    assert drafter.call(5, group=1) == whole, "its own row is as it was, but what they share is not"
    assert [drafter.call(5, group=0), drafter.call(5, group=1)] == [whole, (16, 32)]


def test_drafters_are_told_apart() -> None:
    switch, whole = Padding(), (REQUESTS, TOKENS)
    one, other = Drafter(switch), Drafter(switch)
    other.slots = one.slots
    assert [one.call(5), other.call(5), one.call(5), other.call(5)] == [whole, whole, (16, 32), (16, 32)]
    one.buffers[3] = SimpleNamespace()
    assert one.call(5) == whole


def test_what_is_forgotten_is_padded_in_full() -> None:
    switch = Padding()
    drafter = Drafter(switch)
    for forget in (switch.forgetting(lambda value, *, more=0: value + more), lambda *_, **__: switch.close() or 3):
        drafter.call(5)
        assert forget(1, more=2) == 3
        assert [drafter.call(5), drafter.call(5)] == [(REQUESTS, TOKENS), (16, 32)]


def test_a_call_that_fails_is_raised_and_nothing_is_known_of_what_it_left() -> None:
    drafter = Drafter(Padding())
    for _ in range(2):
        drafter.call(5)
    drafter.fails = True
    with pytest.raises(RuntimeError, match="planted"):
        drafter.call(5)
    drafter.fails = False
    assert [drafter.call(5), drafter.call(5)] == [(REQUESTS, TOKENS), (16, 32)]


def test_arguments_by_name_are_passed_on_and_nothing_is_known_of_the_call() -> None:
    switch = Padding()
    drafter = Drafter(switch)
    drafter.call(5)
    first, *sampled = drafter.buffers
    batch = SimpleNamespace(num_reqs=5, num_tokens_after_padding=20)
    drafter.prepare(first, drafter.slots[0], *sampled, batch, 4, 3, max_num_reqs=REQUESTS, max_num_tokens=TOKENS)
    assert drafter.given[-1] == drafter.call(5) == (REQUESTS, TOKENS)
    assert reasons(switch) == {FIRST: 2, BY_NAME: 1}


def test_an_error_of_ours_is_counted_and_the_call_goes_on_as_it_would(monkeypatch: Patch) -> None:
    switch = Padding()
    drafter = Drafter(switch)
    drafter.call(5)
    with monkeypatch.context() as patch:
        patch.setattr(Known, "why_not", failing)
        assert drafter.call(5) == (REQUESTS, TOKENS)
    assert dict(switch.counts.errors) == {"RuntimeError: planted": 1}
    assert [drafter.call(5), drafter.call(5)] == [(REQUESTS, TOKENS), (16, 32)]


def failing(*_: Any) -> None:
    raise RuntimeError("planted")


def _one_unit_too_few(patch: Patch) -> None:
    patch.setattr(padding, "smaller", lambda most, needed: max(16, smaller(most, needed) - 16))


def _any_number_of_requests(patch: Patch) -> None:
    patch.setattr(Known, "why_not", lambda self, asked: None if self.slots else FIRST)


def _nothing_is_forgotten(patch: Patch) -> None:
    patch.setattr(Padding, "forgetting", lambda _, original: original)


def _without_the_targets_tokens(patch: Patch) -> None:
    def blind(places: Places, args: tuple[Any, ...]) -> Any:
        batch = SimpleNamespace(num_reqs=args[places.batch].num_reqs, num_tokens_after_padding=0)
        return read(places, (*args[: places.batch], batch, *args[places.batch + 1 :]))

    read = Places.read
    patch.setattr(Places, "read", blind)


@pytest.mark.parametrize(
    ("fault", "shows_in"),
    [
        (_one_unit_too_few, "a prefill between decodes"),
        (_without_the_targets_tokens, "a prefill between decodes"),
        (_any_number_of_requests, "more requests, then fewer"),
        (_nothing_is_forgotten, "a graph is captured in between"),
    ],
)
def test_too_little_padding_shows(fault: Callable[[Patch], None], shows_in: str, monkeypatch: Patch) -> None:
    assert judge(ITEM, CASES[shows_in], Place()).passed
    fault(monkeypatch)
    judged = judge(ITEM, CASES[shows_in], Place())
    assert judged.outside > 0
    assert judged.faults == ()
