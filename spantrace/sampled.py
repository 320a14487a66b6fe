"""What the header of a sampled recording holds: how often stacks of a server were seen in which spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spantrace.recording import Cycles, Header, Recording, Spans

KEY = "sampled"


@dataclass(frozen=True)
class Seen:
    """So many samples of a thread in these spans at once, each with the function that it was known by.

    `process` is an index of the header's processes, `main` whether it was that one's main thread.
    """

    process: int
    main: bool
    spans: dict[str, str]
    samples: int


@dataclass(frozen=True)
class Samples:
    """All that was seen for `seconds`, `rate` looks a second, of which `failed` gave no stack.

    `cost` is the part of a core that the profiler `by` took; process 0 is the engine.
    """

    by: str
    rate: int
    seconds: float
    failed: int
    cost: float
    seen: tuple[Seen, ...]

    def plain(self) -> dict[str, Any]:
        """As a header holds it."""
        return asdict(self)


def samples_of(header: Mapping[str, Any]) -> Samples | None:
    """What a recording's header holds of samples, None of a measured one's."""
    held = header.get(KEY)
    if not isinstance(held, Mapping):
        return None
    return Samples(**{**held, "seen": tuple(Seen(**one) for one in held["seen"])})


def recording_of(samples: Samples, header: Header) -> Recording:
    """A recording of these samples, which has no cycles and no spans."""
    tables = (
        {
            name: np.zeros((0, 0) if name in ("drafted", "accepted") else 0, dtype=text.split("np.")[1].rstrip("]"))
            for name, text in kind.__annotations__.items()
        }
        for kind in (Cycles, Spans)
    )
    return Recording({**header, KEY: samples.plain()}, Cycles(**next(tables)), Spans(**next(tables)))
