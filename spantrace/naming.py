"""Raw rows of one process with their final names: by site, by nesting, and by the boundaries between spans.

A wrapper costs a few microseconds where caches are cold, as they are in a server's loop: so what lies between two
hooked functions is not hooked but drawn. `target.input_prep` runs from the moment the worker is handed a step to
its target.forward, less target.metadata; `postprocess` begins where sample or draft.propose ended, and
`draft.input_prep` where draft.propose began or its last child ended. Who hooks target.input_prep itself, as the
built-in cycle does, gets none drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spantrace.frames import Frame, unpack_rows
from spantrace.recording import Header
from spantrace.spans import PARENT, SPAN_ID
from spantrace.wrapping import LANE_SHIFT

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
DROPPED = -1
_DRAFT_PARTS = [SPAN_ID[name] for name, parent in PARENT.items() if parent == "draft.propose"]


@dataclass
class Process:
    """What one process of the server sent: host rows [n, 3], GPU rows [n, 5], parts of graphs [n, 4] and facts."""

    about: Header
    rows: Ints
    gpu: Ints
    facts: dict[str, list[list[Any]]] = field(default_factory=dict)
    parts: Ints = field(default_factory=lambda: np.zeros((0, 4), dtype=np.int64))

    @classmethod
    def from_frames(cls, about: Header, frames: list[Frame]) -> Process:
        """Collect one process's frames."""
        process = cls(about, _rows(frames, "rows", 3), _rows(frames, "gpu", 5), parts=_rows(frames, "parts", 4))
        for frame in frames:
            for kind, *values in frame.get("facts", ()):
                process.facts.setdefault(kind, []).append(values)
        return process

    def table(self, kind: str, width: int) -> Ints:
        """The facts of one kind as an array [n, width]; a fact's lists are left out."""
        return np.array([fact[:width] for fact in self.facts.get(kind, [])], dtype=np.int64).reshape(-1, width)

    def sites(self) -> Ints:
        """The site of each host row, [n]; a row's first column also holds its lane."""
        return self.rows[:, 0] & ((1 << LANE_SHIFT) - 1)

    def detail(self) -> dict[int, bool]:
        """By step, whether this worker had every hook in force for it; an older one did not say, and had."""
        return {step: bool(more[0]) for step, _, *more in self.facts.get("execute", []) if more}

    def graphs(self) -> Ints:
        """When a CUDA graph of which kind was chosen or launched, [n, 2]: by fact, and by the site of a row."""
        modes = {int(site): mode for site, mode in self.about.get("graphs", {}).items()}
        site = self.sites()
        at = np.isin(site, list(modes))
        mode = [modes[number] for number in site[at].tolist()]
        rows = np.column_stack([self.rows[at, 1], np.array(mode, dtype=np.int64)])
        both = np.concatenate([self.table("graph", 2), rows])
        return both[np.argsort(both[:, 0], kind="stable")]

    def names(self, sites: int) -> Ints:
        """The span id of each site, and in a second column what it is inside draft.propose, shape [>= sites, 2].

        A journal that was cut off can hold rows of sites that it does not name: DROPPED.
        """
        ids = [
            (SPAN_ID[span], SPAN_ID[span] if inside is None else SPAN_ID.get(inside, DROPPED))
            for span, inside in self.about["sites"]
        ]
        ids += [(DROPPED, DROPPED)] * (sites - len(ids))
        return np.array(ids, dtype=np.int64).reshape(-1, 2)


def _rows(frames: list[Frame], kind: str, width: int) -> Ints:
    parts = [unpack_rows(frame) for frame in frames if frame["type"] == kind]
    return np.concatenate(parts) if parts else np.zeros((0, width), dtype=np.int64)


@dataclass
class NamedRows:
    """Host rows with final names, in order of their start; `opened` is the start that the wrapper saw."""

    name: Ints
    lane: Ints
    start: Ints
    end: Ints
    opened: Ints


def name_rows(process: Process) -> NamedRows:
    """Name rows by site and nesting, draw the boundaries, and drop a row that lies in one of the same name."""
    site = process.sites()
    lane, start, end = process.rows[:, 0] >> LANE_SHIFT, process.rows[:, 1], process.rows[:, 2]
    order = np.lexsort((-end, start))
    site, lane, start, end = site[order], lane[order], start[order], end[order]
    names = process.names(int(site.max(initial=0)) + 1)
    name = names[site, 0]
    proposes = (name == SPAN_ID["draft.propose"]) & (lane == 0)
    inside = _within(start, start[proposes], end[proposes]) & (lane == 0) & ~proposes
    name = np.where(inside, names[site, 1], name)
    keep = name != DROPPED
    keep[keep] = ~nested_in_own_kind(name[keep], lane[keep], start[keep], end[keep])
    rows = NamedRows(name[keep], lane[keep], start[keep], end[keep], start[keep].copy())
    return draw_boundaries(rows, process.table("execute", 2)[:, 1])


def _within(at: Ints, starts: Ints, ends: Ints) -> Flags:
    """Which moments lie in one of the intervals, given in order of their start."""
    if not len(starts):
        return np.zeros(len(at), dtype=bool)
    last = np.searchsorted(starts, at, side="right") - 1
    return (last >= 0) & (at < np.maximum.accumulate(ends)[np.maximum(last, 0)])


def nested_in_own_kind(name: Ints, lane: Ints, start: Ints, end: Ints) -> Flags:
    """Which rows, in order of their start, begin inside one of the same name on the same lane."""
    nested = np.zeros(len(name), dtype=bool)
    key = name + (lane << 16)
    for value in np.unique(key):
        at = np.flatnonzero(key == value)
        furthest = np.maximum.accumulate(end[at])
        nested[at[1:]] = start[at[1:]] < furthest[:-1]
    return nested


def draw_boundaries(rows: NamedRows, handed: Ints) -> NamedRows:
    """Add target.input_prep for each moment in `handed`, and let postprocess and draft.input_prep begin earlier."""
    main = rows.lane == 0
    _begin_after(rows, main, "postprocess", [SPAN_ID["sample"], SPAN_ID["draft.propose"]], handed)
    proposes = rows.start[main & (rows.name == SPAN_ID["draft.propose"])]
    _begin_after(rows, main, "draft.input_prep", _DRAFT_PARTS, proposes)
    if (rows.name == SPAN_ID["target.input_prep"]).any():
        return rows
    start, end = _input_prep(rows, main, handed)
    size = len(start)
    added = NamedRows(np.full(size, SPAN_ID["target.input_prep"]), np.zeros(size, dtype=np.int64), start, end, start)
    columns = {name: np.concatenate([column, vars(added)[name]]) for name, column in vars(rows).items()}
    order = np.lexsort((-columns["end"], columns["start"]))
    return NamedRows(**{name: column[order] for name, column in columns.items()})


def _begin_after(rows: NamedRows, main: Flags, name: str, before: list[int], floor: Ints) -> None:
    """Let each row of `name` begin at the last end of a row in `before`, or at the last moment in `floor`."""
    at = np.flatnonzero(main & (rows.name == SPAN_ID[name]))
    ends = np.sort(np.concatenate([rows.end[main & np.isin(rows.name, before)], floor]))
    last = np.searchsorted(ends, rows.start[at], side="right") - 1
    earlier = last >= 0
    rows.start[at[earlier]] = ends[last[earlier]]


def _input_prep(rows: NamedRows, main: Flags, handed: Ints) -> tuple[Ints, Ints]:
    """Start and end of each stretch between a step's handing over, its metadata and its target.forward."""
    handed = np.sort(handed)
    forward = rows.start[main & (rows.name == SPAN_ID["target.forward"])]
    metadata = main & (rows.name == SPAN_ID["target.metadata"])
    next_forward = np.searchsorted(forward, handed)
    following = np.append(handed[1:], np.iinfo(np.int64).max)
    real = next_forward < len(forward)
    real[real] = forward[next_forward[real]] < following[real]
    begin, end = handed[real], forward[next_forward[real]]
    starts, ends = rows.start[metadata], rows.end[metadata]
    first, behind = np.searchsorted(starts, begin), np.searchsorted(starts, end)
    some = behind > first
    before = np.where(some, starts[np.minimum(first, max(len(starts) - 1, 0))] if len(starts) else end, end)
    after = ends[behind[some] - 1] if len(ends) else end[:0]
    return np.concatenate([begin, after]), np.concatenate([before, end[some]])
