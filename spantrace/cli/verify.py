"""`spantrace verify`: every optimization against its reference, on all its cases."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spantrace.cli.options import device_option, dtype_option, format_option, ids_argument

if TYPE_CHECKING:
    from optimized.cases import Place
    from optimized.judging import Judgement
    from spantrace.tables import Document, Fact, Headline, Row, Table


@click.command("verify")
@ids_argument
@device_option
@dtype_option
@format_option
def command(ids: tuple[str, ...], device: str | None, dtype: str | None, form: str) -> None:
    """Judge the optimizations IDS, or all of them, against their references on all their cases.

    The exit code is 1 where one does not agree as far as it declares to, 3 where one of IDS cannot be judged here.
    """
    from spantrace.cli.optimizing import chosen, is_all, ready
    from spantrace.cli.wording import warn
    from spantrace.errors import EXIT_GATE_FAILED, EXIT_NOT_COMPARABLE
    from spantrace.tables import Format
    from spantrace.terminal import emit

    items, unmet = ready(chosen(ids), "judge", device)
    from optimized.judging import choose_place, judge

    place = choose_place(device, dtype)
    judged = [judge(item, case, place) for item in items for case in item.cases()]
    result = document(judged, place, unmet)
    warn(result, Format(form))
    emit(result, Format(form))
    if not all(one.passed for one in judged):
        raise click.exceptions.Exit(EXIT_GATE_FAILED)
    if unmet and not is_all(ids):
        raise click.exceptions.Exit(EXIT_NOT_COMPARABLE)


def document(judged: list[Judgement], place: Place, unmet: dict[str, str]) -> Document:
    """One row a case under its optimization's, which holds the totals; `unmet` says what could not be judged."""
    from spantrace.cli.optimizing import machine
    from spantrace.tables import Document

    return Document(
        "verify",
        (machine(place.device, place.dtype),),
        _headline(judged, len(unmet)),
        _table(judged),
        tuple(_facts(judged, place, unmet)),
        {
            "device": place.device,
            "dtype": place.dtype,
            "passed": all(one.passed for one in judged),
            "judgements": [{**asdict(one), "passed": one.passed} for one in judged],
            "not_judged": unmet,
        },
    )


def _headline(judged: list[Judgement], unmet: int) -> Headline:
    from spantrace.tables import Headline

    names = list(dict.fromkeys(one.optimization for one in judged))
    failed = [one for one in judged if not one.passed]
    if not failed:
        agree = "1 optimization agrees with its reference" if len(names) == 1 else f"{len(names)} optimizations agree"
        theirs = "" if len(names) == 1 else " with their references"
        without = f", {unmet} not judged here" if unmet else ""
        return Headline("PASS", (f"{agree}{theirs} in all {len(judged)} cases{without}.",), "bold green")
    sentences = []
    for name in dict.fromkeys(one.optimization for one in failed):
        own = [one for one in failed if one.optimization == name]
        cases = sum(one.optimization == name for one in judged)
        outside, elements = sum(one.outside for one in own), sum(one.elements for one in own)
        worst = f"{outside:,} of their {elements:,} elements are outside" if outside else own[0].faults[0]
        sentences.append(f"{name} fails {len(own)} of {cases} cases: {worst}.")
    sentences += [f"{unmet} not judged here."] if unmet else []
    return Headline("FAIL", tuple(sentences), "bold red")


def _table(judged: list[Judgement]) -> Table:
    from spantrace.tables import Column, Table, percent

    def count(value: float) -> str:
        return f"{value:,.0f}"

    columns = (
        Column("optimization", "optimization, case"),
        Column("case", "case", only="data"),
        Column("tier", "tier", only="data"),
        Column("device", "device", only="data"),
        Column("dtype", "dtype"),
        Column("steps", "steps", write=count, only="data"),
        Column("tensors", "tensors", write=count),
        Column("elements", "elements", write=count, optional=True),
        Column("unequal", "differ", write=count),
        Column("outside", "outside", write=count),
        Column("error", "error", write=lambda error: f"{error:.1e}" if error else "0"),
        Column("tolerance", "tolerance", write=str, only="data"),
        Column("used", "used", write=lambda used: percent(used) if used < 10 else f"{used:,.0f}x"),
        Column("passed", "passed", only="data"),
    )
    rows: list[Row] = []
    for name in dict.fromkeys(one.optimization for one in judged):
        own = [one for one in judged if one.optimization == name]
        rows += [_total(own), *(_row(one) for one in own)]
    return Table(columns, tuple(rows))


def _row(one: Judgement) -> Row:
    from spantrace.tables import Cell, Row

    cells: dict[str, Cell] = {
        "optimization": one.optimization,
        "case": one.case,
        "tier": one.tier.value,
        "device": one.place.device,
        "dtype": one.place.dtype,
        "steps": one.steps,
        "tensors": one.tensors,
        "elements": one.elements,
        "unequal": one.unequal,
        "outside": one.outside,
        "error": one.error,
        "tolerance": one.tolerance,
        "used": one.used,
        "passed": "yes" if one.passed else "no",
    }
    return Row(cells, f"  {one.case}", "" if one.passed else "red", f"{one.optimization}: {one.case}")


def _total(own: list[Judgement]) -> Row:
    from spantrace.tables import Cell, Row

    first, used = own[0], [one.used for one in own if one.used is not None]
    cells: dict[str, Cell] = {
        "optimization": first.optimization,
        "tier": first.tier.value,
        "device": first.place.device,
        "error": max(one.error for one in own),
        "used": max(used) if used else None,
        "passed": "yes" if all(one.passed for one in own) else "no",
    }
    cells |= {key: sum(getattr(one, key) for one in own) for key in ("tensors", "elements", "unequal", "outside")}
    return Row(cells, f"{first.optimization}  {first.tier.name}", "bold", only="text")


def _facts(judged: list[Judgement], place: Place, unmet: dict[str, str]) -> list[Fact]:
    from optimized.optimization import Agreement
    from spantrace.cli.wording import DOUBT_STYLES
    from spantrace.tables import Fact

    allowed = {one.place.dtype: one.tolerance for one in judged if one.tolerance is not None}
    tolerances = ", ".join(f"{tolerance:g} in {dtype}" for dtype, tolerance in allowed.items())
    said = {
        Agreement.BITWISE: "BITWISE: no bit may differ, on any machine",
        Agreement.PINNED: "PINNED: no bit may differ with the torch it was proven on",
        Agreement.TOLERANT: f"TOLERANT: |error| <= t (1 + |reference|), t {tolerances}",
    }
    facts = [
        Fact("tier", tuple(text for tier, text in said.items() if any(one.tier is tier for one in judged))),
        Fact("differ", ("elements with another bit; outside: those that the tier does not allow",)),
        Fact("error", ("the largest one; used: the largest share of what is allowed",)),
        Fact("also held" if not any(one.faults for one in judged) else "also judged", (_ALSO,)),
    ]
    faults = [f"{one.optimization}, {one.case}: {fault}" for one in judged for fault in one.faults]
    facts += [Fact("fault", (fault,), DOUBT_STYLES[1]) for fault in faults]
    facts += [Fact("doubt", (doubt,), DOUBT_STYLES[0]) for doubt in _doubts(place)]
    return [*facts, *(Fact("not judged", (f"{name}: {why}",), DOUBT_STYLES[0]) for name, why in unmet.items())]


def _doubts(place: Place) -> list[str]:
    """What agreement at this place does not prove."""
    from optimized.launching import why_no_kernels

    if (place.device, place.dtype) != ("cpu", "bfloat16") or why_no_kernels("cpu"):
        return []
    return [_CUT_OFF]


_CUT_OFF = (
    "Triton's interpreter cuts float32 off where a GPU rounds it to bfloat16, so nothing is shown of the arithmetic of "
    "kernels; verify on a GPU, or with --dtype float32"
)
_ALSO = "inputs stay as they were, poisoned outputs are all written and none is read, the same bits twice"
