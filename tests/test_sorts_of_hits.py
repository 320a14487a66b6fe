"""Hits that a report tells apart: counted, recorded, added up over processes, taken off, and told."""

from __future__ import annotations

from collections import Counter

from optimized.optimization import Counts
from spantrace.cli.fired import counted
from spantrace.switched import KEY, from_counts, since, summed, switched

PLAIN = {"id": "x", "hits": 2, "fallbacks": 1, "errors": 0, "reasons": {"it rains": 1}}
SORTED = Counts(9, Counter({"it rains": 1}), Counter(), Counter({"by moonlight": 2, "in the dark": 5})).as_dict("x")


def test_a_switch_without_sorts_says_nothing_of_them() -> None:
    assert Counts(2, Counter({"it rains": 1})).as_dict("x") == PLAIN
    assert from_counts(PLAIN).sorts == ()
    assert counted(from_counts(PLAIN)) == "2 hits, 1 fallback"


def test_sorts_are_told_with_the_hits_they_are_among_the_most_frequent_first() -> None:
    (found,) = switched({KEY: [SORTED]})
    assert (found.hits, found.sorts) == (9, (("in the dark", 5), ("by moonlight", 2)))
    assert counted(found) == "9 hits (5 in the dark, 2 by moonlight), 1 fallback"
    assert found.reasons == (("it rains", 1),)


def test_those_of_several_processes_are_added_up() -> None:
    (both,) = summed([SORTED, PLAIN, SORTED])
    assert both["sorts"] == {"by moonlight": 4, "in the dark": 10}
    assert (both["hits"], both["reasons"]) == (20, {"it rains": 3})
    assert "sorts" not in summed([PLAIN, PLAIN])[0]


def test_those_from_before_are_taken_off() -> None:
    before = SORTED | {"hits": 4, "sorts": {"in the dark": 3, "by moonlight": 2}}
    assert since(before, SORTED) == {
        "id": "x",
        "hits": 5,
        "fallbacks": 0,
        "errors": 0,
        "reasons": {},
        "sorts": {"in the dark": 2},
    }
    assert "sorts" not in since(PLAIN, PLAIN)
