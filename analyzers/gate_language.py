"""The checks of a gates file: `draft.metadata.host <= 10% of base` as a quantity, a figure of it and a region.

A quantity is SPAN.host, SPAN.gpu, SPAN.own, cycle, itl, ttft, latency, tokens_per_s, cached_tokens or acceptance. A
bound is `-4%` (of change against base), `10% of base`, `1.60 ms`, `3.00`, `3.00 +- 0.01`, `base`, `base + block` (a
constant of the file), `base +- 1%`. A +- without a unit has that of its bound: `itl == 5% +- 0.1` is from 4.9% to
5.1%. Base is the stock arm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from analyzers.quantities import ACCEPTANCE, PARENTS, Quantity
from spantrace.errors import SpantraceError
from spantrace.spans import SPAN_NAMES

Figure = Literal["relative", "difference", "value"]
RUN_NAMES = {"itl": "itl_ms", "ttft": "ttft_ms", "latency": "latency_ms", "tokens_per_s": "tokens_per_s",
             "cached_tokens": "cached_tokens", ACCEPTANCE: ACCEPTANCE}  # fmt: skip
_COUNTS = frozenset({"tokens_per_s", "cached_tokens", ACCEPTANCE})
_MS = {"ms": 1.0, "us": 1e-3, "": 1.0}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_CHECK = re.compile(r"\s*(\S+)\s*(<=|>=|==|<|>)\s*(.+?)\s*")
_BOUND = re.compile(
    rf"(?:(?P<base>base)(?:\s*(?P<sign>[+-])\s*(?P<term>{_NUMBER}|[a-z_]\w*))?|(?P<number>[+-]?{_NUMBER}))"
    rf"\s*(?P<unit>ms|us|%\s+of\s+base|%)?"
    rf"(?:\s*(?:\+-|±)\s*(?P<within>[+-]?{_NUMBER})\s*(?P<within_unit>ms|us|%)?)?"
)


@dataclass(frozen=True)
class Check:
    """That `figure` of a quantity (its change as a part of base or in its unit, or its value) lies in a region.

    The region reaches from `low` to `high`; `open` says that the bound itself is not in it. `within` is what an
    equality allows on either side, None for an inequality.
    """

    quantity: Quantity
    figure: Figure
    low: float
    high: float
    open: bool
    within: float | None

    def holds(self, low: float, high: float) -> bool:
        """Whether an interval lies in the region whole."""
        return (self.low < low and high < self.high) if self.open else (self.low <= low and high <= self.high)

    def fails(self, low: float, high: float) -> bool:
        """Whether no point of an interval lies in the region."""
        return (high <= self.low or self.high <= low) if self.open else (high < self.low or self.high < low)

    def excludes(self, other: Check) -> bool:
        """Whether the regions of two checks of one figure of one quantity have no point in common."""
        same = (self.quantity, self.figure) == (other.quantity, other.figure)
        low, high = max(self.low, other.low), min(self.high, other.high)
        return same and (low > high or (low == high and (self.open or other.open)))

    @property
    def allows_base(self) -> bool:
        """Whether an inequality allows base as it is, or all that is beyond it: then it asks for no change."""
        return self.within is None and self.figure != "value" and self.low <= 0 <= self.high

    @property
    def counted(self) -> bool:
        """Whether the quantity is a count or a rate, not a time."""
        return self.quantity.name in _COUNTS

    @property
    def bound(self) -> float:
        """What the figure is held against."""
        if self.within is not None:
            return (self.low + self.high) / 2
        return self.high if self.low == -inf else self.low


def parse_check(text: str, constants: Mapping[str, float]) -> Check:
    """Read one check; SpantraceError in one sentence for what cannot be read, met or missed."""
    found = _CHECK.fullmatch(text)
    bound = _BOUND.fullmatch(found[3]) if found else None
    if found is None or bound is None:
        raise SpantraceError(f"gate {text!r} cannot be read; write it as `cycle <= 5.2 ms`, `itl < -4%`, "
                             "`target.metadata.host <= 10% of base` or `acceptance == 3.00 +- 0.01`")  # fmt: skip
    quantity = _quantity(text, found[1])
    figure, value = _figure(text, quantity, bound, constants)
    within = _within(text, found[2], figure, bound)
    if not (isfinite(value) and isfinite(within or 0.0)):
        raise SpantraceError(f"gate {text!r} is impossible: its bound is no finite number")
    check = Check(quantity, figure, *_region(found[2], value, within or 0.0), open=found[2] in "<>", within=within)
    _refuse_vain(text, check)
    return check


def _quantity(text: str, name: str) -> Quantity:
    if name in RUN_NAMES:
        return Quantity(RUN_NAMES[name], "run")
    span, _, where = name.rpartition(".") if name != "cycle" else ("cycle", "", "host")
    if span in SPAN_NAMES and where == "host":
        return Quantity(span, "host")
    if span in SPAN_NAMES and where == "gpu":
        return Quantity(span, "gpu")
    if span in PARENTS and where == "own":
        return Quantity(span, "own")
    raise SpantraceError(f"gate {text!r} names no quantity; choose SPAN.host or SPAN.gpu of {', '.join(SPAN_NAMES)}, "
                         f"or {', '.join(RUN_NAMES)}")  # fmt: skip


def _figure(
    text: str, quantity: Quantity, bound: re.Match[str], constants: Mapping[str, float]
) -> tuple[Figure, float]:
    unit, within_unit = " ".join((bound["unit"] or "").split()), bound["within_unit"]
    if bound["base"]:
        return _against_base(text, quantity, bound, unit or within_unit or "", constants)
    value = float(bound["number"])
    if unit == "%":
        return "relative", value / 100
    if unit == "% of base":
        return "relative", value / 100 - 1
    return "value", value * _scale(text, quantity, unit)


def _against_base(
    text: str, quantity: Quantity, bound: re.Match[str], unit: str, constants: Mapping[str, float]
) -> tuple[Figure, float]:
    if unit == "% of base" or (bound["unit"] and not bound["term"]):
        raise SpantraceError(f"gate {text!r} cannot be read; write a change as `< -4%`, a part as `<= 10% of base`")
    value = _term(text, bound["term"], constants) * (-1 if bound["sign"] == "-" else 1)
    if unit == "%":
        return "relative", value / 100
    bare = not bound["term"] and not bound["within"]
    return "difference", value * (1.0 if bare else _scale(text, quantity, unit))


def _scale(text: str, quantity: Quantity, unit: str) -> float:
    """What one of `unit` is in the unit of the quantity: times are in ms and must say so, counts have none."""
    counted = quantity.name in _COUNTS
    if counted and unit:
        raise SpantraceError(f"gate {text!r} is impossible: {quantity} is no time in {unit}")
    if not counted and not unit:
        raise SpantraceError(f"gate {text!r} has no unit; write ms, us or %")
    return _MS[unit]


def _term(text: str, term: str | None, constants: Mapping[str, float]) -> float:
    if term is None:
        return 0.0
    if term[0].isdigit():
        return float(term)
    if term not in constants:
        raise SpantraceError(f"gate {text!r} uses {term!r}, which is none of the file's constants")
    return constants[term]


def _within(text: str, comparison: str, figure: Figure, bound: re.Match[str]) -> float | None:
    if bound["within"] is None:
        return 0.0 if comparison == "==" else None
    if comparison != "==":
        raise SpantraceError(f"gate {text!r} is impossible to read: +- belongs to ==")
    value, unit = float(bound["within"]), bound["within_unit"]
    if value < 0:
        raise SpantraceError(f"gate {text!r} is impossible: nothing lies within {bound['within']} of a value")
    if unit is not None and (unit == "%") != (figure == "relative"):
        raise SpantraceError(f"gate {text!r} mixes units; write the +- in the unit of the bound")
    return value / 100 if figure == "relative" else value * _MS[unit or bound["unit"] or ""]


def _region(comparison: str, value: float, within: float) -> tuple[float, float]:
    if comparison == "==":
        return value - within, value + within
    return (-inf, value) if comparison.startswith("<") else (value, inf)


def _refuse_vain(text: str, check: Check) -> None:
    """No gate that nothing can pass, and none that nothing can fail."""
    least = {"relative": -1.0, "difference": -inf, "value": 1.0 if check.quantity.name == ACCEPTANCE else 0.0}
    lowest = least[check.figure]
    what = (
        "a change is never below -100%" if check.figure == "relative" else f"{check.quantity} is never below {lowest:g}"
    )
    if check.high < lowest or (check.open and check.high <= lowest):
        raise SpantraceError(f"gate {text!r} is impossible: {what}")
    if check.high == inf and (check.low < lowest or (check.low == lowest and not check.open)) and lowest > -inf:
        raise SpantraceError(f"gate {text!r} can never fail: {what}")
