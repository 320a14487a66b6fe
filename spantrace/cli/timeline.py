"""The median cycle as a figure of a page: a lane per thread and GPU stream, with spans, waits and gaps to scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spantrace.page import Element, element
from spantrace.spans import PARENT, Track, own_name
from spantrace.tables import Row, number

if TYPE_CHECKING:
    from analyzers.median_cycle import Bar, Lane, MedianCycle

HUES = {
    "schedule": 190,
    "target.input_prep": 215,
    "target.metadata": 255,
    "target.forward": 145,
    "sample": 45,
    "postprocess": 20,
    "draft.propose": 315,
    "output.update": 80,
    "output.emit": 170,
}
"""The colour of each part of the cycle; a span inside one has its colour, and a wait has none."""
LETTER, ROOM = 0.95, 1.0
"""About how wide a letter is, and how much room a label needs around it, in percent of a lane."""
TICKS = 8
_NEIGHBOURS = {-1: "the cycle before", 1: "the cycle after"}
_MEANINGS = {Track.HOST: "the host is in no span or between two cycles", Track.GPU: "the GPU is idle"}
_GAPS = {Track.HOST: "in no span", Track.GPU: "idle"}


def timeline(found: MedianCycle) -> Element:
    """The figure, with what it shows above and the meaning of its fillings below."""
    return element(
        "figure",
        element("h2", "The median cycle"),
        element("figcaption", _caption(found)),
        element(
            "div",
            element("div", *_axis(found), class_="axis"),
            *(_lane(lane, found) for lane in found.lanes),
            class_="timeline",
        ),
        element("p", *_legend(found), class_="legend"),
    )


def swatch(row: Row) -> Element | None:
    """A patch in the colour that the row's span has in the figure."""
    hue = _hue(str(row.cells.get("span")))
    return None if hue is None else element("b", style=f"--hue: {hue}", class_="swatch")


def _caption(found: MedianCycle) -> str:
    return (
        f"One real cycle, number {found.index + 1:,} of the recording: of {found.among:,} whose spans are known, its "
        f"period of {number(found.period)} ms is the nearest to their median, {number(found.typical)} ms. "
        "A span can take longer or shorter in it than its own median in the table."
    )


def _axis(found: MedianCycle) -> Iterable[Element]:
    step = _step(found.period)
    for index in range(int(found.period / step) + 1):
        at = index * step
        unit = " ms" if not index else ""
        yield element("span", f"{at:g}{unit}", style=f"left: {_percent(at, found)}")


def _step(period: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that puts at most so many ticks into the period."""
    size = 10.0 ** math.floor(math.log10(period / TICKS))
    return next(times * size for times in (1, 2, 5, 10) if period / (times * size) <= TICKS)


def _lane(lane: Lane, found: MedianCycle) -> Element:
    deepest = max((bar.depth for bar in lane.bars), default=0)
    gaps = [_gap(start, end, _GAPS[lane.track], found) for start, end in lane.gaps]
    if lane is found.lanes[0] and found.length < found.period:
        gaps.append(_gap(found.length, found.period, "between two cycles", found))
    return element(
        "div",
        element("div", lane.name, class_="name"),
        element("div", *gaps, *(_bar(bar, found) for bar in lane.bars), class_="track"),
        class_=f"lane {lane.track.name.lower()}",
        style=f"--rows: {deepest + 1}",
    )


def _gap(start: float, end: float, why: str, found: MedianCycle) -> Element:
    return element("i", title=f"{why}: {_times(start, end)}", style=_place(start, end, found), class_="gap")


def _bar(bar: Bar, found: MedianCycle) -> Element:
    hue, parent = _hue(bar.name), PARENT[bar.name]
    whole = "busy" if bar.name == "cycle" else bar.name
    name = own_name(bar.name) if bar.depth and parent else whole
    told = [whole, *(["a wait"] if bar.wait else []), *([_whose(bar.of)] if bar.of else [])]
    kinds = [
        "bar",
        *(["wait"] if bar.wait else ["plain"] if hue is None else []),
        *(["other"] if bar.of else []),
        *(["inner"] if bar.depth else []),
    ]
    room = (bar.end - bar.start) / found.period * 100
    return element(
        "span",
        name if room >= LETTER * len(name) + ROOM else None,
        title=f"{', '.join(told)}: {_times(bar.start, bar.end)}",
        style=f"{_place(bar.start, bar.end, found)}; --row: {bar.depth}" + ("" if hue is None else f"; --hue: {hue}"),
        class_=" ".join(kinds),
    )


def _whose(of: int) -> str:
    return f"of {_NEIGHBOURS.get(of, f'the cycle {of:+d} from this one')}"


def _times(start: float, end: float) -> str:
    return f"{number(end - start)} ms, from {start:.3f} to {end:.3f}"


def _place(start: float, end: float, found: MedianCycle) -> str:
    return f"left: {_percent(start, found)}; width: {_percent(end - start, found)}"


def _percent(ms: float, found: MedianCycle) -> str:
    return f"{ms / found.period * 100:.3f}%"


def _hue(name: str) -> int | None:
    """The hue of a span or of the part of the cycle that it is in; None for a wait and what is no span."""
    while name not in HUES and PARENT.get(name) is not None:
        name = str(PARENT[name])
    return HUES.get(name)


def _legend(found: MedianCycle) -> Iterable[Element]:
    bars = [bar for lane in found.lanes for bar in lane.bars]
    tracks = {lane.track for lane in found.lanes if lane.gaps}
    if any(bar.wait for bar in bars):
        yield _filling("bar wait", "the host waits")
    if tracks:
        yield _filling("gap", ", ".join(_MEANINGS[track] for track in sorted(tracks)))
    if any(bar.of for bar in bars):
        yield _filling("bar other", "of the cycle before or after")


def _filling(kind: str, means: str) -> Element:
    return element("span", element("b", class_=kind), means)
