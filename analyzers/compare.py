"""Two servers' span tables side by side in the manner of benchstat: medians, delta, interval, p."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.per_cycle import STEADY, Floats, chosen_cycles
from analyzers.quantities import span_series
from analyzers.span_table import depth
from analyzers.statistics import SIGNIFICANT, Estimate, median_estimate, run_medians, shift, smallest_p
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.recording import Recording
from spantrace.sampled import samples_of
from spantrace.spans import TREE, Kind, Track

Value = str | int | float | bool | None
_NOT_CONFIGURATION = frozenset({"url", "port", "args"})
"""Keys of the header's server part that differ between two servers of one configuration."""
TOGETHER = {
    "drafter": frozenset(
        {
            "method",
            "num_speculative_tokens",
            "always_drafts",
            "rejection_sample_method",
            "acceptance",
            "draft_attention_backend",
        }
    )
}
"""A key that `vary` may name, and those that follow from it."""


@dataclass(frozen=True)
class SpanDelta:
    """One span on one clock: medians in ms (None where that side has no such span) and b over a, less 1.

    `low` and `high` bound the delta with 95%, None where there are too few values; `units` counts the runs, or blocks
    of cycles, that the test had on each side. `shown` is False where the difference may be chance.
    """

    name: str
    depth: int
    track: Track
    a: Estimate | None
    b: Estimate | None
    delta: float | None
    low: float | None
    high: float | None
    p: float | None
    shown: bool
    units: tuple[int, int]

    @property
    def absent(self) -> str | None:
        """The side that lacks the span, "A" or "B"; None where both have it."""
        return "A" if self.a is None else "B" if self.b is None else None

    @property
    def too_few(self) -> bool:
        """Whether both sides have the span, and no difference of so few runs or blocks could be shown."""
        return self.absent is None and smallest_p(*self.units) > SIGNIFICANT


@dataclass(frozen=True)
class Difference:
    """A configuration key that the two sides do not share."""

    key: str
    a: Value
    b: Value


@dataclass(frozen=True)
class Comparison:
    """Rows in the tree's order, host before GPU; `unit` is what the test takes as independent: "run" or "block"."""

    rows: tuple[SpanDelta, ...]
    differences: tuple[Difference, ...]
    unit: str
    runs: tuple[int, int]
    cycles: tuple[int, int]


def compare(
    a: Sequence[Recording],
    b: Sequence[Recording],
    vary: Iterable[str] = (),
    *,
    force: bool = False,
    kinds: frozenset[Kind] = STEADY,
) -> Comparison:
    """Compare the runs of b with those of a; configurations that differ beyond `vary` are an error unless `force`.

    With one run on a side its unit is the block of cycles: the interval then holds for these runs only.
    """
    differing = checked_differences([*a, *b], frozenset(vary), a, b, force)
    sides = [[span_series(run, kinds) for run in side] for side in (a, b)]
    for label, side in zip("AB", sides, strict=True):
        if not any(("cycle", Track.HOST) in run for run in side):
            raise SpantraceError(f"{label} has no two cycles of this kind in a row; record it longer, under load")
    rows = []
    for track in Track:
        for name in TREE:
            values = [[run[name, track] for run in side if (name, track) in run] for side in sides]
            if values[0] or values[1]:
                rows.append(_delta(name, track, values[0], values[1]))
    counts = [sum(int(chosen_cycles(run, kinds).sum()) for run in side) for side in (a, b)]
    unit = "run" if len(a) > 1 and len(b) > 1 else "block"
    return Comparison(tuple(rows), differing, unit, (len(a), len(b)), (counts[0], counts[1]))


def configuration(recording: Recording) -> dict[str, Value]:
    """What must be equal for two recordings to be of one thing: server, GPU, host, versions, batch."""
    header = recording.header
    found: dict[str, Value] = {
        str(key): value for key, value in (header.get("server") or {}).items() if key not in _NOT_CONFIGURATION
    }
    found["spans"] = "measured" if samples_of(header) is None else "sampled"
    found["graph_spans"] = any(bool(about.get("graph_spans")) for about in header.get("processes") or [])
    gpu, host = header.get("gpu") or {}, header.get("host") or {}
    found |= {"gpu": gpu.get("name"), "driver": gpu.get("driver"), "torch": gpu.get("torch") or found.get("torch")}
    found |= {"host": host.get("name"), **{key: host.get(key) for key in ("cpu", "cores", "python")}}
    batch = recording.cycles.batch[chosen_cycles(recording, STEADY)]
    found |= {"spantrace": header.get("spantrace"), "batch": _whole(float(np.median(batch))) if len(batch) else None}
    return found


def _whole(value: float) -> int | float:
    """A whole number as one."""
    return int(value) if value.is_integer() else value


def differences(a: Recording, b: Recording) -> tuple[Difference, ...]:
    """The configuration keys in which two recordings differ."""
    first, second = configuration(a), configuration(b)
    keys = dict.fromkeys([*first, *second])
    return tuple(Difference(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key))


def checked_differences(
    runs: Sequence[Recording],
    vary: frozenset[str],
    a: Sequence[Recording],
    b: Sequence[Recording],
    force: bool,
) -> tuple[Difference, ...]:
    """How a[0] and b[0] differ; SpantraceError where runs of a side do, or the sides beyond `vary`, unless `force`."""
    known = {key for run in runs for key in configuration(run)} | TOGETHER.keys()
    vary |= {key for name in vary for key in TOGETHER.get(name, ())}
    if unknown := sorted(vary - known - frozenset().union(*TOGETHER.values())):
        raise SpantraceError(
            f"--vary names no configuration key: {', '.join(unknown)}; keys: {', '.join(sorted(known))}"
        )
    within = [difference for side in (a, b) for run in side[1:] for difference in differences(side[0], run)]
    between = [difference for run in b for difference in differences(a[0], run) if difference.key not in vary]
    if (within or between) and not force:
        listed = dict.fromkeys(f"\n  {one.key}: {one.a} against {one.b}" for one in [*within, *between])
        advice = "the runs of one side must be alike" if within else "declare the treatment with --vary KEY,KEY"
        raise SpantraceError(
            f"not comparable, the configurations differ; {advice}, or use --force:{''.join(listed)}",
            EXIT_NOT_COMPARABLE,
        )
    return differences(a[0], b[0])


def _delta(name: str, track: Track, a: list[Floats], b: list[Floats]) -> SpanDelta:
    first, second = (_pooled(side) for side in (a, b))
    units = (len(run_medians(a)) if a else 0, len(run_medians(b)) if b else 0)
    found = shift(a, b) if a and b else None
    if found is None:
        return SpanDelta(name, depth(name), track, first, second, None, None, None, None, False, units)
    low, high = (None if bound is None else bound - 1 for bound in (found.low, found.high))
    return SpanDelta(name, depth(name), track, first, second, found.ratio - 1, low, high, found.p, found.shown, units)


def _pooled(side: list[Floats]) -> Estimate | None:
    return median_estimate(np.concatenate(side) / 1e6) if side else None
