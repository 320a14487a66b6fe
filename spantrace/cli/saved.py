"""Sentences about an attribution: what converted, what fired, overlapped, drifted, and which gates were missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantrace.tables import Fact, many, number, percent, signed_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analyzers.arms import Arm
    from analyzers.attribution import Attribution
    from analyzers.effects import Effect
    from analyzers.statistics import Estimate

_CLOCK = {"host": "host", "gpu": "GPU"}
_NAMED = 4
"""How many other spans that moved are named for an arm."""


_WORDS = {"converted": "yes", "not told": "unclear", "sum not told": "unclear", "nothing saved": "no saving",
          "never fired": "never fired", "not enough": "too few"}  # fmt: skip
_BOUND = {"host": "the host bound the cycle", "gpu": "the GPU bound the cycle",
          "elsewhere": "another process bound the cycle"}  # fmt: skip


def converted(arm: Arm) -> str | None:
    """Whether the saving in an arm's target spans came out of the cycle, in a word or as the part that did."""
    found = arm.conversion
    if found is None:
        return None
    return (
        percent(found.share.value) if found.verdict == "partly" and found.share else _WORDS.get(found.verdict, "hidden")
    )


def _conversions(found: Attribution) -> list[Fact]:
    """How much of what was saved in the target spans came out of the cycle, and who bound it where that is not all."""
    parts = []
    for arm in found.arms:
        one = arm.conversion
        if one is not None and one.verdict == "sum not told":
            parts.append(f"{arm.name} saved time in {_saved_spans(arm)}, but in all that is unclear: the sum of its "
                         "spans is not told from noise")  # fmt: skip
        if one is None or one.saved is None:
            continue
        side = {"host": "host", "gpu": "GPU"}.get(one.side or "")
        saved = f"{arm.name} saved {number(-one.saved.difference.value)} ms of {side} time"
        if one.verdict == "converted":
            parts.append(f"{saved}, and the {side} was critical")
        elif one.verdict == "not told":
            parts.append(f"{saved}, less than the noise of the cycle")
        else:
            rest = "the rest was" if one.verdict == "partly" else "which was"
            parts.append(f"{saved}, {rest} hidden: {_BOUND[one.hidden_by or 'elsewhere']}")
    return [Fact("converted", tuple(parts))] if parts else []


def _saved_spans(arm: Arm) -> str:
    sides = [one.quantity for one in arm.effects if one.saved and one.quantity.name in arm.targets]
    return ", ".join(dict.fromkeys(str(one) for one in sides if one.where != "own"))


def facts(found: Attribution) -> list[Fact]:
    """All that the table does not say."""
    return [
        *_lost(found),
        *_enough(found),
        *_hits(found),
        *_conversions(found),
        *_interactions(found),
        *_separations(found),
        *_moved(found),
        *_drifts(found),
        *_contended(found),
        _test(found),
    ]


def arm_facts(found: Attribution) -> list[Fact]:
    """What is told of a campaign's arms also where it is one of several: which failed, fired, were contended."""
    return [*_lost(found), *_enough(found), *_hits(found), *_contended(found)]


def _lost(found: Attribution) -> list[Fact]:
    return [Fact("failed arms", tuple(f"{one.name} {one.why}" for one in found.lost), "red")] if found.lost else []


def _enough(found: Attribution) -> list[Fact]:
    arms: dict[str, list[str]] = {}
    for arm in found.arms:
        if arm.not_enough and arm is not found.again:
            arms.setdefault(arm.not_enough.removeprefix("not enough: "), []).append(arm.name)
    parts = tuple(f"{', '.join(names)}: {sentence}" for sentence, names in arms.items())
    return [Fact("not enough", parts, "yellow")] if parts else []


def _hits(found: Attribution) -> list[Fact]:
    from spantrace.cli.fired import counted

    parts = [_of(arm, f"{one.id} {counted(one)}", one.id) for arm in found.arms for one in arm.fired]
    warnings = [_of(arm, one.warning, one.id) for arm in found.arms for one in arm.fired if one.warning]
    lines = [Fact("hits", tuple(parts))] if parts else []
    return lines + ([Fact("NEVER FIRED", tuple(warnings), "red")] if warnings else [])


def _of(arm: Arm, sentence: str, name: str) -> str:
    """A sentence about an optimization, after the arm's name where that is another one."""
    return sentence if arm.name == name else f"{arm.name}: {sentence}"


def _interactions(found: Attribution) -> list[Fact]:
    lines = []
    for one in found.interactions:
        sizes = f"together {number(one.joint_ms)} ms, the sum of each alone {number(one.sum_ms)}"
        overlap = "they overlap" if one.interaction.value < 0 else "they help each other"
        verdict = overlap if one.shown else "none shown" if one.enough else "not enough rounds to tell"
        left = [f"without {', '.join(one.left_out)}, which never fired in it"] if one.left_out else []
        bounds = _bounds(one.relative, "of the cycle")
        lines.append(Fact("interaction", (f"{one.arm}: {verdict}, {sizes}", bounds, *left)))
    untold = [f"{one.arm}: not told, {' and '.join(one.silent)} never fired" for one in found.untold]
    return [*lines, *(Fact("interaction", (sentence,)) for sentence in untold)]


def _bounds(estimate: Estimate, of: str = "") -> str:
    if estimate.low is None or estimate.high is None:
        return f"{signed_percent(estimate.value)} {of}".rstrip()
    written = f"{signed_percent(estimate.low)} .. {signed_percent(estimate.high)}"
    return f"{signed_percent(estimate.value)} {of}".rstrip() + f" ({written})"


def _separations(found: Attribution) -> list[Fact]:
    from analyzers.quantities import CYCLE

    parts = []
    for arm in found.arms:
        effect = arm.effect(CYCLE)
        if arm is found.again or effect is None or effect.change is None or not effect.shown:
            continue
        distance = number(abs(effect.change.separation))
        if effect.separated:
            parts.append(f"every cycle median of {arm.name} lies beyond every one of {found.stock}, by {distance} ms")
        else:
            parts.append(f"the cycle medians of {arm.name} and {found.stock} overlap by {distance} ms")
    return [Fact("separation", tuple(parts))] if parts else []


def _moved(found: Attribution) -> list[Fact]:
    """Spans that moved beside the targets, what encloses them and the waits."""
    lines = []
    for arm in found.arms:
        moved = [one for one in arm.effects if one.shown and one.change and _unexpected(arm, one)]
        most = sorted(moved, key=lambda one: -abs(one.change.difference.value) if one.change else 0.0)
        if most:
            named = [f"{one.quantity} {_signed_ms(one)}" for one in most[:_NAMED]]
            more = [f"and {len(most) - _NAMED} more"] if len(most) > _NAMED else []
            lines.append(Fact("also moved", (f"{arm.name}: {', '.join([*named, *more])}",), "yellow"))
    return lines


def _unexpected(arm: Arm, effect: Effect) -> bool:
    from analyzers.quantities import lineage
    from spantrace.spans import WAITS

    quantity = effect.quantity
    return quantity.where != "run" and quantity.name not in lineage(frozenset(arm.targets)) | WAITS | {"cycle"}


def _signed_ms(effect: Effect) -> str:
    value = effect.change.difference.value if effect.change else 0.0
    return f"{'-' if value < 0 else '+'}{number(abs(value))} ms"


def _drifts(found: Attribution) -> list[Fact]:
    rows = [(arm, one) for arm in found.arms for one in arm.drift]
    if not rows:
        return []
    parts = [
        f"what {arm.name} does not touch takes {_bounds(one.change.relative)} {_CLOCK[one.quantity.where]} time"
        for arm, one in rows
        if one.shown and one.change and one.change.relative
    ]
    if parts:
        return [Fact("drift", tuple(parts), "yellow")]
    return [_no_drift(rows)]


def _no_drift(rows: Sequence[tuple[Arm, Effect]]) -> Fact:
    """That no drift is shown, or that the runs are too few to show one."""
    from analyzers.effects import resolves_drift

    tests, able = many(len(rows), "test"), {arm.name for arm, one in rows if resolves_drift(one, len(rows))}
    few = [name for name in dict.fromkeys(arm.name for arm, _ in rows) if name not in able]
    none = [f"none shown in the spans that an arm does not touch ({tests})"] if able else []
    lacking = [f"not enough: the runs of {', '.join(few)} can show none ({tests})"] if few else []
    return Fact("drift", (*none, *lacking), "yellow" if few else "")


def _contended(found: Attribution) -> list[Fact]:
    counts = {found.stock: (found.stock_contended, found.stock_runs)}
    counts |= {arm.name: (arm.contended, arm.runs) for arm in found.arms}
    parts = [f"{len(which)} of {many(runs, 'run')} of {name}" for name, (which, runs) in counts.items() if which]
    return [Fact("contended", (*parts, "kept in all figures"), "yellow")] if parts else []


def _test(found: Attribution) -> Fact:
    from analyzers.statistics import SIGNIFICANT

    tests = max((sum(one.adjusted is not None for one in arm.effects) for arm in found.arms), default=0)
    parts = ["each run's median ranked among stock's of its round (van Elteren)", f"`~` is p >= {SIGNIFICANT:.2f}"]
    parts.append(f"p is Holm's over an arm's {tests} quantities; its cycle, target spans and load have half of the 5%")
    return Fact("test", (*parts, "intervals by bootstrap, each on its own"))
