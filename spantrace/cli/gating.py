"""Gates at the command line: reading them, judging two sides, and the lines that say what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spantrace.errors import SpantraceError
from spantrace.tables import Document, Fact

if TYPE_CHECKING:
    from analyzers.gates import Gates, Judged
    from spantrace.recording import Recording

_STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow"}


def gate_facts(judged: Sequence[Judged]) -> list[Fact]:
    """A line for every gate, and one for the disposition of each that was missed."""
    lines = []
    for one in judged:
        outcome = one.outcome.value
        sentence = f"{outcome.upper()}  {one.gate.text}  in {one.arm}: {one.reason}"
        lines.append(Fact("gate", (sentence,), _STYLES[outcome]))
        if outcome != "pass":
            lines.append(Fact("disposition", ("____",)))
    return lines


def gate_data(judged: Sequence[Judged]) -> list[dict[str, str | None]]:
    """The gates as JSON has them, with a place for the disposition."""
    return [
        {"check": one.gate.text, "arm": one.arm, "outcome": one.outcome.value, "reason": one.reason,
         "disposition": None}
        for one in judged
    ]  # fmt: skip


def read_gates(path: Path) -> Gates:
    """The gates of a file; SpantraceError in one sentence for what it cannot mean."""
    from analyzers.gates import parse

    try:
        return parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise SpantraceError(f"cannot read the gates in {path}: {getattr(error, 'strerror', 'no text')}") from error


def judge_sides(gates: Gates, sides: Sequence[Sequence[Recording]], names: tuple[str, str]) -> tuple[Judged, ...]:
    """Judge B against A; what every other run, or block, of A differs from the rest stands in for an A/A arm."""
    from analyzers.attribution import pair
    from analyzers.gates import judge

    quantities = [one.check.quantity for one in gates.gates]
    return judge(gates, pair(sides[0], sides[1], names, quantities))


def gated(document: Document, gates: Gates, judged: Sequence[Judged]) -> Document:
    """A comparison with its gates before the other facts."""
    noise = Fact("noise", ("a gate is held against what one half of A's runs, or blocks, differs from the other",))
    data = {**document.data, "gates": gate_data(judged), "gates_sha256": gates.hash}
    return replace(document, facts=(*gate_facts(judged), noise, *document.facts), data=data)
