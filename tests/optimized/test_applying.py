"""Apply and revert: everything is put back as it was, in any order, and whoever else was there is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from every_one import ALL, each  # noqa: E402
from switchboard import FOREIGN, Wrapping, everything, place_of, same  # noqa: E402

import optimized  # noqa: E402
from optimized.optimization import Optimization  # noqa: E402
from optimized.seams import Seam  # noqa: E402
from spantrace.errors import EXIT_BAD_INPUT, SpantraceError  # noqa: E402

ORDERS = list(permutations(ALL, 2))
"""Every two, in both orders."""
Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_two_switches_in_any_order_give_back_the_identical_objects(order: tuple[str, str]) -> None:
    before = everything()
    for leaving in (order, order[::-1]):
        for name in order:
            assert optimized.apply([name]) == [name]
        assert optimized.applied() == order
        for count, name in enumerate(leaving, 1):
            assert [said["id"] for said in optimized.revert([name])] == [name]
            assert same(before, everything()) == (count == 2)
    optimized.apply(order)
    assert not same(before, everything())
    optimized.revert()
    assert same(before, everything())


@each
def test_applying_and_reverting_twice_changes_nothing_more(item: Optimization) -> None:
    before = everything()
    assert optimized.revert([item.id]) == []
    assert optimized.apply([item.id, item.id]) == [item.id]
    on = everything()
    assert optimized.apply([item.id]) == []
    assert same(on, everything())
    assert len(optimized.revert()) == 1
    assert optimized.revert() == []
    assert same(before, everything())
    optimized.apply(ALL)
    assert [said["id"] for said in optimized.revert()] == list(ALL)[::-1]


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=list(FOREIGN))
@each
def test_a_seam_that_somebody_else_patched_refuses_the_switch(
    item: Optimization, foreign: Callable[[Any, Any], Any], monkeypatch: Patch
) -> None:
    for seam in item.seams_at():
        owner, method = place_of(seam)
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, foreign(owner, getattr(owner, method)))
            before = everything()
            with pytest.raises(SpantraceError, match=f"{seam.method} was patched by somebody else") as refusal:
                optimized.apply(sorted(ALL, key=lambda name: name == item.id))
            assert refusal.value.exit_code == EXIT_BAD_INPUT
            assert same(before, everything())
            assert optimized.applied() == ()


@each
def test_a_switch_that_somebody_patched_over_stays(item: Optimization, monkeypatch: Patch) -> None:
    before = everything()
    optimized.apply(ALL)
    seam = item.seams_at()[-1]
    with monkeypatch.context() as patch:
        patch.setattr(*place_of(seam), lambda *_: None)
        on = everything()
        with pytest.raises(SpantraceError, match=rf"{item.id} cannot be taken back: .*{seam.method} was patched"):
            optimized.revert()
        assert same(on, everything())
        assert optimized.applied() == tuple(ALL)
    optimized.revert()
    assert same(before, everything())


class _Sealing(type):
    """A class whose methods cannot be replaced, as those of one in C."""

    def __setattr__(cls, name: str, value: object) -> None:
        if name == "shut":
            raise TypeError(f"{cls.__name__} is sealed")
        super().__setattr__(name, value)


class Sealed(metaclass=_Sealing):
    """Two seams, of which the second resists."""

    def open(self) -> str:
        return "open"

    def shut(self) -> str:
        return "shut"


@pytest.mark.parametrize("place", [0, 1, len(ALL)])
def test_a_seam_that_resists_takes_all_of_them_back(place: int, monkeypatch: Patch) -> None:
    seams = tuple(Seam(f"{__name__}:Sealed.{name}") for name in ("open", "shut"))
    sealed = replace(ALL["query-build"], id="sealed", seams=seams, switch=Wrapping)
    monkeypatch.setattr(optimized, "discover", lambda: {**ALL, "sealed": sealed})
    before = [*everything(), dict(vars(Sealed))]
    ids = list(ALL)
    ids.insert(place, "sealed")
    with pytest.raises(SpantraceError, match=r"nothing was applied, because .*: Sealed is sealed$") as refusal:
        optimized.apply(ids)
    assert refusal.value.exit_code == EXIT_BAD_INPUT
    assert same(before, [*everything(), dict(vars(Sealed))])
    assert (Sealed().open(), Sealed().shut()) == ("open", "shut")
    assert optimized.applied() == ()
    assert optimized.apply(ALL) == list(ALL)
