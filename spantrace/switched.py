"""What a recording's header says of the optimizations that were on, the same for the built-in cycle and for servers.

Under `KEY` lies a list of plain maps: id, hits, fallbacks, errors, and the reasons of the latter two with their counts;
where some hits are told apart, their sorts with their counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KEY = "optimizations"


@dataclass(frozen=True)
class Switched:
    """One optimization that was on: calls that it took, that fell back, and that failed and fell back.

    `reasons` are those of the fallbacks and errors, `sorts` what sets some of the hits apart, the most frequent first.
    """

    id: str
    hits: int
    fallbacks: int
    errors: int
    reasons: tuple[tuple[str, int], ...]
    sorts: tuple[tuple[str, int], ...] = ()

    @property
    def warning(self) -> str | None:
        """What to tell about one that never fired; None where it did."""
        if self.hits:
            return None
        if not (turned_away := self.fallbacks + self.errors):
            return f"{self.id} was on and no call reached it"
        because = f", most because {self.reasons[0][0]}" if self.reasons else ""
        return f"{self.id} was on and never fired: {turned_away:,} calls fell back{because}"


def switched(header: Mapping[str, Any]) -> tuple[Switched, ...]:
    """The optimizations of a recording's header."""
    return tuple(from_counts(one) for one in header.get(KEY) or [])


def counted_in(headers: Iterable[Mapping[str, Any]]) -> dict[str, Switched]:
    """What several recordings count together, by id."""
    return {one["id"]: from_counts(one) for one in summed(one for header in headers for one in header.get(KEY) or [])}


def from_counts(one: Mapping[str, Any]) -> Switched:
    """One optimization's entry in a header."""
    reasons, sorts = (_counted(one, key) for key in ("reasons", "sorts"))
    hits, fallbacks, errors = (int(one.get(key) or 0) for key in ("hits", "fallbacks", "errors"))
    return Switched(str(one.get("id")), hits, fallbacks, errors, reasons, sorts)


def _counted(one: Mapping[str, Any], key: str) -> tuple[tuple[str, int], ...]:
    return tuple(Counter({str(name): int(count) for name, count in (one.get(key) or {}).items()}).most_common())


def summed(counts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries of several processes as one an id."""
    total: dict[str, dict[str, Any]] = {}
    for one in counts:
        so_far = total.setdefault(one["id"], {"id": one["id"], "hits": 0, "fallbacks": 0, "errors": 0, "reasons": {}})
        for name in ("hits", "fallbacks", "errors"):
            so_far[name] += one[name]
        so_far["reasons"] = dict(Counter(so_far["reasons"]) + Counter(one["reasons"]))
        if sorts := Counter(so_far.get("sorts", {})) + Counter(one.get("sorts", {})):
            so_far["sorts"] = dict(sorts)
    return list(total.values())


def since(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of what was counted between two entries of one optimization; without an earlier one, the later."""
    if before is None:
        return dict(now)
    totals = {name: now[name] - before[name] for name in ("hits", "fallbacks", "errors")}
    sorts = _fewer(now.get("sorts", {}), before.get("sorts", {}))
    reasons = _fewer(now["reasons"], before["reasons"])
    return {"id": now["id"], **totals, "reasons": reasons, **({"sorts": sorts} if sorts else {})}


def _fewer(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: left for name, count in now.items() if (left := count - before.get(name, 0))}
