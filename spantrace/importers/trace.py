"""What is read of a trace before cycles are found in it: columns of events, labels, and what was wrong."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spantrace.naming import Flags, Ints
from spantrace.recording import Header

LARGEST_TIME = 1 << 62


@dataclass(frozen=True)
class Events:
    """Columns of n events, int64, in order of their start; times are nanoseconds of the trace's clock.

    `process`, `thread` (a stream on the GPU) and `name` are places in `Trace.labels`. `correlation` is 0 where the
    event has none, `cycle` is -1 where the trace does not say of which cycle it is.
    """

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    name: Ints
    correlation: Ints
    cycle: Ints

    def __len__(self) -> int:
        return len(self.start)

    def only(self, chosen: Flags | Ints) -> Events:
        """The chosen events, by a mask or by their places."""
        return Events(**{name: column[chosen] for name, column in vars(self).items()})


class Columns:
    """Events as they are read, in any order and with duplicates."""

    def __init__(self) -> None:
        self._values = array("q")

    def add(self, row: tuple[int, int, int, int, int, int, int]) -> None:
        """Append one event, its values in the order of `Events`' fields, each below `LARGEST_TIME`."""
        self._values.extend(row)

    def events(self, faults: Counter[str]) -> Events:
        """The events in order; how many were out of order or there twice is added to `faults`."""
        table: NDArray[np.int64] = np.frombuffer(self._values, dtype=np.int64).reshape(-1, len(fields(Events)))
        faults["out of order"] += int((np.diff(table[:, 0]) < 0).sum())
        table = table[np.lexsort(table.T[::-1])]
        same = np.append(False, (table[1:] == table[:-1]).all(axis=1))[: len(table)]
        faults["duplicate"] += int(same.sum())
        return Events(*np.ascontiguousarray(table[~same].T))


@dataclass
class Trace:
    """One trace: annotations and CUDA calls of the host, kernels and copies of the GPU.

    `faults` counts what was wrong with events, `cut` says that the file ends too early, `owned` that GPU events name
    the process for which they ran, `whole_graphs` that graphs are one kernel each. Of a trace that spantrace itself
    wrote, `steps` holds what it wrote of each cycle, `parts` its annotations of the GPU, and `about` the header of its
    recording.
    """

    source: str
    annotations: Events
    calls: Events
    kernels: Events
    copies: Events
    labels: list[Any]
    read: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    cut: bool = False
    gpu_name: str | None = None
    realtime_offset_ns: int = 0
    owned: bool = False
    whole_graphs: bool = False
    parts: Events | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    about: Header | None = None

    def named(self, events: Events, wanted: Any) -> Flags:
        """Which events have a name that the predicate `wanted` accepts, [n]."""
        accepted = np.array([isinstance(label, str) and bool(wanted(label)) for label in self.labels], dtype=bool)
        found: Flags = accepted[events.name] if len(self.labels) else np.zeros(len(events), dtype=bool)
        return found


class Labels:
    """Numbers for process ids, thread ids and names, which traces give as integers or as text."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, label: object) -> int:
        """The number of this label; text and integers that look alike are two."""
        key = label if isinstance(label, (str, int)) else str(label)
        return self._numbers.setdefault(key, len(self._numbers))

    def all(self) -> list[Any]:
        """The labels by number."""
        return list(self._numbers)
