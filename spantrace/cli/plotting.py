"""A picture of a campaign: every run's cycle by arm, and by when it ran, which shows what drifted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spantrace.errors import SpantraceError
from spantrace.packages import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analyzers.attribution import Attribution
    from spantrace.recording import Recording

_ONE_S = 1e9
_BEGINNINGS = {".png": (b"\x89PNG",), ".pdf": (b"%PDF",), ".svg": (b"<?xml", b"<svg"), ".jpg": (b"\xff\xd8",),
               ".jpeg": (b"\xff\xd8",)}  # fmt: skip
"""How the files of each kind of picture begin."""


def check_picture(path: Path) -> None:
    """SpantraceError where `plot` could not draw into the file, or would write over one that is no such picture."""
    _figure()
    beginnings = _BEGINNINGS.get(path.suffix.lower())
    if beginnings is None:
        raise SpantraceError(f"cannot draw into {path}: the suffix must be one of {', '.join(_BEGINNINGS)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise SpantraceError(f"cannot draw into {path}: {path.parent} is no folder that can be written to")
    try:
        begins = path.read_bytes()[:8] if path.exists() else b""
    except OSError as error:
        raise SpantraceError(f"cannot draw into {path}: {error.strerror}") from error
    if begins and not begins.startswith(beginnings):
        raise SpantraceError(f"{path} is there and no picture; choose another file for the plot")


def plot(found: Attribution, runs: Mapping[str, Sequence[Recording]], path: Path) -> None:
    """Draw the arms' distributions and the drift into an image file; SpantraceError without matplotlib."""
    shown = {name: some for name, some in runs.items() if any(cycle_ms(run) for run in some)}
    figure = _figure()(figsize=(10, 2.5 + 0.35 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _distributions(left, shown)
    _drift(right, found, shown)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise SpantraceError(f"cannot draw into {path}: {error}") from error


def _figure() -> type[Figure]:
    with extra("plot", "a plot"):
        from matplotlib.figure import Figure
    return Figure


def cycle_ms(run: Recording) -> list[float]:
    """The periods of a run's steady cycles."""
    from analyzers.quantities import CYCLE, series

    values = series(run).get(CYCLE)
    return [] if values is None else [float(value) for value in values if value == value]


def _distributions(axes: Axes, runs: Mapping[str, Sequence[Recording]]) -> None:
    """All cycles of an arm as a box without its outermost twentieths, and the median of each run as a dot."""
    import numpy as np

    names = list(runs)
    every = [[value for run in runs[name] for value in cycle_ms(run)] for name in names]
    axes.boxplot(
        every, orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.5, medianprops={"color": "k"}
    )
    for place, name in enumerate(names, start=1):
        medians = [float(np.median(values)) for run in runs[name] if (values := cycle_ms(run))]
        axes.plot(medians, [place] * len(medians), ".", color=f"C{place - 1}")
    axes.set_yticks(range(1, len(names) + 1), names)
    axes.invert_yaxis()
    axes.set_xlabel("cycle, ms (box: quartiles, whiskers: 5% and 95%, dots: medians of runs)", fontsize=8)


def _drift(axes: Axes, found: Attribution, runs: Mapping[str, Sequence[Recording]]) -> None:
    """The median of every run at the time when it began, stock and its double joined by lines."""
    import numpy as np

    started = {name: [float(run.cycles.start[0]) / _ONE_S for run in some] for name, some in runs.items()}
    first = min(time for times in started.values() for time in times)
    doubles = {found.stock, found.again.name if found.again else ""}
    for name, some in runs.items():
        medians = [float(np.median(values)) if (values := cycle_ms(run)) else np.nan for run in some]
        times = [time - first for time in started[name]]
        axes.plot(times, medians, ".-" if name in doubles else ".", label=name, linewidth=1)
    axes.set_xlabel("seconds since the first run", fontsize=8)
    axes.set_ylabel("cycle, ms", fontsize=8)
    axes.legend(fontsize=7, loc="best")
