"""Parameters are left where they are until a request is added to their sampler; and what shows where that is wrong."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.unchanged_sampling.reference import Counting, Restless, Sampler, Words  # noqa: E402
from optimized.unchanged_sampling.writes import (  # noqa: E402
    ADDED,
    FIRST,
    STRANGE_PROCESSOR,
    STRANGE_SAMPLER,
    UnchangedWrites,
    name_of,
)

ITEM = optimized.discover()["unchanged-sampling"]
ASKED = torch.arange(8)


class Watched:
    """A sampler with the switch around its methods, which counts what they did."""

    def __init__(
        self, switch: UnchangedWrites | None = None, kind: type[Sampler] = Sampler, *others: type[Words]
    ) -> None:
        self.switch = switch or UnchangedWrites({name_of(Sampler)}, {name_of(Words)})
        self.sampler = kind(4, 4, "cpu", (Words, *others))
        self.copies = 0
        self._add = self.switch.adding(kind.add_request)
        self._write = self.switch.writing(self._copy)

    def add(self) -> None:
        self._add(self.sampler, 0, ASKED)

    def step(self) -> None:
        self._write(self.sampler)

    def counted(self) -> dict[str, Any]:
        return self.switch.counts.as_dict("x")

    def _copy(self, sampler: Sampler) -> None:
        self.copies += 1
        sampler.apply_staged_writes()


def test_only_the_first_step_and_those_with_a_new_request_copy() -> None:
    watched = Watched()
    watched.step()
    for new in (0, 0, 1, 0, 2, 0, 0):
        for _ in range(new):
            watched.add()
        watched.step()
    assert watched.copies == 3
    reasons = {FIRST: 1, ADDED: 2}
    assert watched.counted() == {"id": "x", "hits": 5, "fallbacks": 3, "errors": 0, "reasons": reasons}


def test_a_request_of_one_sampler_is_none_of_another() -> None:
    first = Watched()
    second = Watched(first.switch)
    for one in (first, second, first, second):
        one.step()
    second.add()
    for one in (first, second, first, second):
        one.step()
    assert (first.copies, second.copies) == (1, 2)


@pytest.mark.parametrize(
    ("kind", "others", "reason"),
    [(Sampler, (Counting,), STRANGE_PROCESSOR), (Restless, (), STRANGE_SAMPLER)],
    ids=["processor", "sampler"],
)
def test_what_may_change_by_itself_is_copied_in_every_step(
    kind: type[Sampler], others: tuple[type[Words], ...], reason: str
) -> None:
    watched = Watched(None, kind, *others)
    for _ in range(3):
        watched.step()
    watched.add()
    watched.step()
    watched.step()
    assert watched.copies == 5
    assert watched.counted()["reasons"] == {FIRST: 1, reason: 3, ADDED: 1}


@pytest.mark.parametrize("added", [False, True])
def test_copies_that_break_off_are_raised_and_made_again(added: bool) -> None:
    watched = Watched()
    if added:
        watched.step()
        watched.add()

    def fails(sampler: Sampler) -> None:
        raise RuntimeError("planted")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted"):
            watched.switch.writing(fails)(watched.sampler)
    watched.step()
    watched.step()
    assert watched.copies == 1 + added
    assert (watched.counted()["hits"], watched.counted()["errors"]) == (1, 0)


def test_a_request_that_breaks_off_is_raised_and_copied() -> None:
    watched = Watched()
    watched.step()

    def fails(sampler: Sampler, row: int) -> None:
        raise ValueError("too many words")

    with pytest.raises(ValueError, match="too many words"):
        watched.switch.adding(fails)(watched.sampler, row=1)
    watched.step()
    assert watched.copies == 2


def test_a_switch_that_was_off_knows_nothing() -> None:
    watched = Watched()
    watched.step()
    watched.switch.close()
    watched.step()
    assert watched.counted()["reasons"] == {FIRST: 2}
    assert watched.switch.allocated() == 0


def test_a_sampler_that_is_gone_is_forgotten() -> None:
    watched = Watched()
    switch = watched.switch
    watched.step()
    assert len(switch._why) == 1
    del watched
    gc.collect()
    assert len(switch._why) == 0


class Sealed(Sampler):
    """Can be no key."""

    __hash__ = None  # type: ignore[assignment]


def test_an_error_of_ours_is_counted_and_everything_is_copied() -> None:
    watched = Watched(None, Sealed)
    watched.add()
    watched.step()
    watched.step()
    assert watched.copies == 2
    (error,) = watched.counted()["reasons"]
    assert error.startswith("TypeError: unhashable type")
    assert (watched.counted()["hits"], watched.counted()["errors"]) == (0, 3)


def test_processors_that_cannot_be_looked_at_are_copied_and_counted() -> None:
    watched = Watched()
    watched.sampler.logits_processors = None  # type: ignore[assignment]
    write = watched.switch.writing(lambda sampler: "copied")
    assert [write(watched.sampler) for _ in range(2)] == ["copied"] * 2
    assert (watched.counted()["hits"], watched.counted()["errors"]) == (0, 2)


def failed() -> list[str]:
    """The cases that show something."""
    return [case.name for case in ITEM.cases() if not judge(ITEM, case, Place()).passed]


def _notes_nothing(switch: UnchangedWrites, original: Callable[..., Any]) -> Callable[..., Any]:
    return original


def test_a_switch_that_misses_requests_or_trusts_strangers_fails_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed() == []
    with monkeypatch.context() as patch:
        patch.setattr(UnchangedWrites, "adding", _notes_nothing)
        assert {"all accepted", "capacity reached", "odd shapes", "20 steps"} <= set(failed())
    with monkeypatch.context() as patch:
        patch.setattr(UnchangedWrites, "_refusal", lambda switch, sampler: None)
        assert failed() == ["a strange processor", "a strange sampler"]


def test_the_cases_have_hits_and_requests_that_come_late() -> None:
    made = {}
    for case in ITEM.cases():
        problem: Any = case.make(Place())
        for _ in range(case.steps):
            problem.fast()
            problem.next()
        made[case.name] = problem.unchanged.counts
    assert {name for name, counts in made.items() if not counts.hits} == {
        "capacity reached",
        "a strange processor",
        "a strange sampler",
    }
    assert made["20 steps"].fallbacks[ADDED] > 2
    assert made["20 steps"].hits > 5
