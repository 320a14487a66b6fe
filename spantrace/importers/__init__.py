"""Other profilers' traces as recordings, one file each; what they share finds cycles and builds the recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spantrace.recording import Recording

LONGEST_MARK = 16
"""How many bytes of a file `trace_reader` needs."""


def trace_reader(beginning: bytes) -> Callable[[Path], Recording] | None:
    """What reads a trace whose file begins so; None where it is none, as no recording's file does."""
    if beginning.startswith(b"\x1f\x8b") or beginning.lstrip()[:1] in (b"{", b"["):
        return _read_kineto
    return _read_nsys if beginning.startswith(b"SQLite format 3\x00") else None


def _read_kineto(path: Path) -> Recording:
    from spantrace.importers.assembling import recording_of
    from spantrace.importers.kineto import read_trace

    return recording_of(read_trace(path))


def _read_nsys(path: Path) -> Recording:
    from spantrace.importers.assembling import recording_of
    from spantrace.importers.nsys import read_trace

    return recording_of(read_trace(path))
