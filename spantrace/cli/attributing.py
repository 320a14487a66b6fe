"""An attribution and its judged gates as people read them: a row for every arm, its targets and its load under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analyzers.arms import Arm
from analyzers.attribution import Attribution
from analyzers.changes import Change
from analyzers.effects import Effect
from analyzers.quantities import ACCEPTANCE, CYCLE, Quantity
from spantrace.cli import saved
from spantrace.cli.gating import gate_data, gate_facts
from spantrace.tables import Cell, Column, Document, Headline, Row, Table, many, number, probability, signed_percent

if TYPE_CHECKING:
    from analyzers.gates import Judged

LOAD = {"itl_ms": "inter-token", "ttft_ms": "first token", "latency_ms": "request", "tokens_per_s": "tokens/s",
        "cached_tokens": "cached tokens", "acceptance": "acceptance"}  # fmt: skip
NEVER, FAILED = "never fired", "failed"
_MORE_IS_BETTER = frozenset({"tokens_per_s", "cached_tokens", "acceptance"})


class _Signed(str):
    """A written change that knows whether it is for the better."""

    better: bool


def attribution_document(
    found: Attribution, judged: Sequence[Judged] = (), heading: tuple[tuple[str, ...], ...] = ()
) -> Document:
    """The attribution with its gates; `heading` says of what campaign it is."""
    rows = [row for arm in found.arms for row in _rows(arm, found)]
    rows += [Row({"arm": one.name, "shown": FAILED, "interval": one.why}, one.name, "red") for one in found.lost]
    return Document(
        "ab",
        heading or (_heading(found),),
        _headline(found),
        Table(_COLUMNS, tuple(rows)),
        (*gate_facts(judged), *saved.facts(found)),
        _data(found, judged),
    )


def label(quantity: Quantity) -> str:
    """What a quantity is called in a table."""
    if quantity.where == "run":
        return LOAD.get(quantity.name, quantity.name)
    side = {"host": "", "gpu": "GPU ", "own": "own time of "}[quantity.where]
    return side + quantity.name


def _heading(found: Attribution) -> tuple[str, ...]:
    counts = {arm.runs for arm in found.arms} | {found.stock_runs} | ({0} if found.lost else set())
    size = many(counts.pop(), "run") if len(counts) == 1 else f"{min(counts)} to {max(counts)} runs"
    return (
        many(len(found.arms) + len(found.lost) + 1, "arm"),
        f"{size} each",
        *([_noise(found.again)] if found.again else ["no A/A arm"]),
    )


def _noise(again: Arm) -> str:
    cycle = again.effect(CYCLE)
    change = cycle.change.relative if cycle and cycle.change else None
    if change is None or change.low is None or change.high is None:
        return "A/A unknown"
    return f"A/A +-{max(-change.low, change.high):.1%} of the cycle"


def _headline(found: Attribution) -> Headline:
    """What all optimizations together did to the cycle, or the arm that saved most."""
    if not found.arms:
        return Headline("NOTHING TO COMPARE", (f"No arm could be held against {found.stock}.",), "bold red")
    treated = [arm for arm in found.arms if arm is not found.again]
    arm = found.together or min(treated or found.arms, key=_cycle_change)
    effect = arm.effect(CYCLE)
    assert effect is not None
    assert effect.change is not None
    change, word = effect.change, arm.name.upper()
    took = f"{arm.name} takes {number(change.b.value)} ms a cycle, {found.stock} {number(change.a.value)}"
    if arm.never_fired:
        return Headline(f"{word} NEVER FIRED", (f"{took}, but nothing that was on fired.",), "bold red")
    if arm.not_enough and not effect.shown:
        return Headline("NOT ENOUGH", (f"{took}.", f"{arm.not_enough.removeprefix('not enough: ')}."), "bold yellow")
    bounds = f"95% interval {interval(change)}, p {probability(effect.adjusted or 0.0)}"
    if not effect.shown:
        return Headline(f"{word} ~", (f"No difference is shown: {took} ({bounds}).",), "bold")
    style = "bold green" if change.difference.value < 0 else "bold red"
    return Headline(f"{word} {_relative(change)}", (f"{took} ({bounds}).",), style)


def _cycle_change(arm: Arm) -> float:
    effect = arm.effect(CYCLE)
    return effect.change.difference.value if effect and effect.change else 0.0


_COLUMNS = (
    Column("arm", "arm"),
    Column("quantity", "quantity", only="data"),
    Column("where", "where", only="data"),
    Column("stock", "stock ms", write=number),
    Column("treated", "arm ms", write=number),
    Column("shown", "change", write=signed_percent, only="text", style=lambda cell: _colour(cell)),
    Column("interval", "95% interval", write=signed_percent, only="text"),
    Column("change", "change", only="data"),
    Column("change_low", "low", only="data"),
    Column("change_high", "high", only="data"),
    Column("difference", "difference", only="data"),
    Column("p", "p", only="data"),
    Column("p_holm", "p", write=probability, optional=True),
    Column("left_out", "left out", only="data"),
    Column("without", "left out", write=signed_percent, only="text", optional=True),
    Column("separation", "separation", only="data"),
    Column("converted", "converted", optional=True),
)


def _rows(arm: Arm, found: Attribution) -> list[Row]:
    own = [Quantity(name, where) for name in arm.targets for where in ("host", "gpu")]
    load = [Quantity(name, "run") for name in LOAD]
    below = [effect for quantity in [*own, *load] if (effect := arm.effect(quantity)) is not None]
    below = [effect for effect in below if effect.quantity.name != ACCEPTANCE or _differs(effect)]
    cycle = arm.effect(CYCLE)
    assert cycle is not None
    left_out = next((one.left_out for one in found.optimizations if one.alone is arm), None)
    first = _cells(arm, cycle) | {"converted": "A/A" if arm is found.again else saved.converted(arm)}
    if arm.never_fired:
        first["shown"] = NEVER
    if left_out and left_out.change and left_out.change.relative:
        first |= {"left_out": left_out.change.relative.value, "without": _relative(left_out.change)}
        first["without"] = first["without"] if left_out.shown else "~"
    style = "dim" if arm is found.again else ""
    rows = [Row(first, arm.name, style)]
    rows += [_row(arm, effect, style) for effect in below]
    return rows + [_row(arm, effect, "dim") for effect in arm.drift]


def _row(arm: Arm, effect: Effect, style: str) -> Row:
    name = label(effect.quantity)
    return Row(_cells(arm, effect), f"  {name}", style, f"{arm.name}: {name}")


def _differs(effect: Effect) -> bool:
    return effect.change is None or effect.change.difference.value != 0 or effect.change.p < 1


def _cells(arm: Arm, effect: Effect) -> dict[str, Cell]:
    cells: dict[str, Cell] = {"arm": arm.name, "quantity": effect.quantity.name, "where": effect.quantity.where}
    change = effect.change
    if change is None:
        return cells | {"shown": "-", "interval": f"absent in {'stock' if effect.absent == 'stock' else 'arm'}"}
    cells |= {"stock": change.a.value, "treated": change.b.value, "difference": change.difference.value}
    cells |= {"p": change.p, "p_holm": effect.adjusted, "separation": change.separation}
    relative = change.relative
    if relative is not None:
        cells |= {"change": relative.value, "change_low": relative.low, "change_high": relative.high}
    shown = "-" if arm.never_fired else _signed(effect.quantity, change) if effect.shown else "~"
    return cells | {"shown": shown, "interval": interval(change)}


def _signed(quantity: Quantity, change: Change) -> str:
    written = _Signed(_relative(change))
    written.better = (change.difference.value > 0) == (quantity.name in _MORE_IS_BETTER)
    return written


def _relative(change: Change) -> str:
    return f"{change.difference.value:+.3f}" if change.relative is None else signed_percent(change.relative.value)


def interval(change: Change) -> str:
    """The interval of a change as people read it, `-` where the runs are too few."""
    found = change.relative
    if found is None or found.low is None or found.high is None:
        return "-"
    return f"{signed_percent(found.low)} .. {signed_percent(found.high)}"


def _colour(cell: Cell) -> str:
    if isinstance(cell, _Signed):
        return "green" if cell.better else "red"
    return "yellow" if cell == NEVER else "dim"


def _data(found: Attribution, judged: Sequence[Judged]) -> dict[str, Any]:
    """The attribution with every arm once, and the gates."""
    names = {"again": found.again, "together": found.together}
    return {
        "stock": found.stock,
        "stock_runs": found.stock_runs,
        "stock_contended": found.stock_contended,
        "unit": found.unit,
        **{key: None if arm is None else arm.name for key, arm in names.items()},
        "arms": found.arms,
        "lost": found.lost,
        "optimizations": [
            {"id": one.id, "targets": one.targets, "alone": one.alone and one.alone.name, "left_out": one.left_out}
            for one in found.optimizations
        ],
        "interactions": found.interactions,
        "interactions_untold": found.untold,
        "gates": gate_data(judged),
    }
