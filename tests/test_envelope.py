"""Campaigns of several days as one."""

from __future__ import annotations

from functools import cache

import pytest
from campaigns import campaign
from recordings import NEMOTRON_HOST

from analyzers.attribution import STOCK, STOCK_AGAIN, Attribution, attribute
from analyzers.envelope import Range, envelope
from analyzers.quantities import CYCLE, Quantity
from analyzers.statistics import Estimate
from spantrace.cli.combining import envelope_document
from spantrace.errors import SpantraceError
from spantrace.tables import markdown
from spantrace.terminal import lines

METADATA = "target.metadata"


@cache
def day(seed: int, saved_ms: float = 1.0, *, windows: int = 8, fix: str = "fix", hits: int = 9) -> Attribution:
    arms = {STOCK: {}, STOCK_AGAIN: {}, fix: {METADATA: NEMOTRON_HOST[METADATA] - saved_ms}}
    runs = campaign(arms, seed=seed, cycles=60, kernels=None, windows=windows, on={fix: (fix,)}, hits={fix: hits})
    return attribute(runs, {fix: frozenset({fix})}, {fix: (METADATA,)})


def of(ranges: tuple[Range, ...], arm: str, quantity: Quantity) -> Range:
    return next(one for one in ranges if (one.arm, one.quantity) == (arm, quantity))


def test_the_envelope_holds_every_days_interval_and_not_the_final_one() -> None:
    days = {"monday": day(1), "tuesday": day(2)}
    found = envelope({**days, "final": day(3, saved_ms=2.0)}, "final")
    cycle = of(found.ranges, "fix", CYCLE)
    assert (found.campaigns, found.final) == (("monday", "tuesday"), "final")
    assert None not in cycle.changes
    assert cycle.low == min(one.low for one in cycle.changes if one and one.low is not None)
    assert cycle.high == max(one.high for one in cycle.changes if one and one.high is not None)
    assert cycle.agrees
    assert cycle.final is not None
    assert cycle.final.value < (cycle.low or 0.0)
    assert cycle.confirmed is False
    assert of(found.ranges, STOCK_AGAIN, CYCLE).confirmed
    assert of(found.ranges, "fix", Quantity(METADATA, "host")).agrees


def test_days_that_differ_are_told() -> None:
    found = envelope({"monday": day(1), "tuesday": day(2, saved_ms=0.2)})
    assert of(found.ranges, "fix", CYCLE).agrees is False
    assert "**DAYS DIFFER.**" in markdown(envelope_document(found))


def test_the_final_re_run_has_a_column_of_its_own() -> None:
    text = markdown(envelope_document(envelope({"one": day(1), "two": day(2), "final": day(4)}, "final")))
    assert "| arm | one | two | envelope | final | final 95% | remark |" in text
    assert text.startswith("**CONFIRMED.**")
    outside = markdown(envelope_document(envelope({"one": day(1), "final": day(4, saved_ms=2.0)}, "final")))
    assert outside.startswith(
        "**NOT CONFIRMED.** The final re-run's interval lies outside the envelope in cycle of fix"
    )
    other = envelope_document(envelope({"one": day(1), "d2": day(4)}, "d2"))
    assert "| arm | one | envelope | final | final 95% | remark |" in markdown(other)
    row = other.table.rows[0].cells
    assert row["final_range"] == f"{row['final_low']:+.1%} .. {row['final_high']:+.1%}"
    assert "final is d2" in markdown(other)


@pytest.mark.parametrize(
    ("final", "confirmed"),
    [
        (Estimate(-0.05, -0.09, -0.01, 8), True),
        (Estimate(-0.05, -0.07, -0.03, 8), False),
        (Estimate(-0.14, -0.16, -0.125, 8), False),
        (Estimate(-0.10, None, None, 2), None),
    ],
)
def test_a_final_re_run_is_confirmed_where_its_interval_and_the_envelope_overlap(
    final: Estimate, confirmed: bool | None
) -> None:
    day = Estimate(-0.10, -0.12, -0.08, 8)
    assert Range("fix", CYCLE, (day,), day.low, day.high, final).confirmed is confirmed


def test_what_is_not_known_is_neither_confirmed_nor_agreed() -> None:
    few, other, one = day(1, windows=2), day(2, fix="other"), day(1)
    for found in (
        envelope({"one": few, "two": day(2, windows=2)}),
        envelope({"one": one, "two": other}),
        envelope({"one": one}),
        envelope({"one": one, "two": day(2, hits=0)}),
        envelope({"one": few, "final": day(4)}, "final"),
        envelope({"one": one, "final": few}, "final"),
        envelope({"one": one, "final": other}, "final"),
    ):
        document = envelope_document(found)
        assert document.headline is not None
        assert (document.headline.word, found.exit_code) == ("NOT KNOWN", 3)
        cycles = {row.cells["arm"]: row.cells["remark"] for row in document.table.rows if not row.label.startswith(" ")}
        assert {remark for arm, remark in cycles.items() if arm != STOCK_AGAIN} == {"not known"}


def test_the_exit_code_says_what_the_headline_says() -> None:
    assert envelope({"one": day(1), "two": day(2)}).exit_code == 0
    assert envelope({"one": day(1), "two": day(2, saved_ms=0.2)}).exit_code == 3
    assert envelope({"one": day(1), "final": day(4)}, "final").exit_code == 0
    assert envelope({"one": day(1), "final": day(4, saved_ms=2.0)}, "final").exit_code == 1


@pytest.mark.parametrize("days", [2, 9])
def test_it_fits_80_columns_whatever_the_campaigns_are_called(days: int) -> None:
    first, final = day(1), day(2, saved_ms=2)
    names = [f"campaigns/of/a/long/name/{number}" for number in range(days)]
    found = envelope({**dict.fromkeys(names, first), "a/long/name/final": final}, "a/long/name/final")
    shown = [line.plain for line in lines(envelope_document(found), 80, bars=False, cut=True)]
    assert max(map(len, shown)) <= 80
    assert f"day 1 is {names[0]}" in shown
    row = next(line for line in shown if line.startswith("fix "))
    assert row.rstrip().endswith("outside")


def test_a_final_campaign_alone_is_nothing_to_combine() -> None:
    with pytest.raises(SpantraceError, match="no campaign to combine"):
        envelope({"final": day(1)}, "final")
    with pytest.raises(SpantraceError, match="no campaign is called 'last'"):
        envelope({"one": day(1)}, "last")
