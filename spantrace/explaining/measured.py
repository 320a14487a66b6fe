"""What the steady cycles of a window took without any profiler."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spantrace.explaining.within import Window
from spantrace.naming import Flags
from spantrace.recording import Recording
from spantrace.spans import Kind


def in_window(recording: Recording, window: Window) -> Flags:
    """Which steady cycles lie wholly in a window, [cycles]."""
    cycles = recording.cycles
    found: Flags = (cycles.start >= window[0]) & (cycles.end <= window[1]) & (cycles.kind == Kind.STEADY)
    return found


def cycle_ms(recording: Recording, window: Window) -> float | None:
    """The median period in ms; None where no cycle follows another."""
    period = recording.cycles.period[in_window(recording, window)]
    return _median_ms(period[period > 0].astype(np.float64))


def span_ms(recording: Recording, window: Window, span: str) -> float | None:
    """The median time of a cycle in a span on the host in ms; None where none has it."""
    if span == "cycle":
        return cycle_ms(recording, window)
    found = recording.durations(span)[in_window(recording, window)]
    return _median_ms(found[~np.isnan(found)])


def _median_ms(times: NDArray[np.float64]) -> float | None:
    return float(np.median(times)) / 1e6 if len(times) else None
