"""CUDA timing events through the CUDA runtime that torch has already loaded, at a third of torch's cost a record.

The interpreter lock is kept during a call: each takes about a microsecond, and giving the lock up inside the
server's own thread would let any other thread delay it.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

NOT_READY = 600
Event = ctypes.c_void_p
Stream = ctypes.c_void_p


class CudaEvents:
    """Creates, records and reads events; a failing CUDA call raises RuntimeError with its number."""

    def __init__(self, library: str) -> None:
        runtime = ctypes.PyDLL(library)
        self._create = runtime.cudaEventCreateWithFlags
        self._create.argtypes = [ctypes.POINTER(Event), ctypes.c_uint]
        self._record = runtime.cudaEventRecord
        self._record.argtypes = [Event, Stream]
        self._query = runtime.cudaEventQuery
        self._query.argtypes = [Event]
        self._elapsed = runtime.cudaEventElapsedTime
        self._elapsed.argtypes = [ctypes.POINTER(ctypes.c_float), Event, Event]

    def create(self) -> Event:
        """A new timing event on the calling thread's device; it lives as long as the process."""
        event = Event()
        _check(self._create(ctypes.byref(event), 0))
        return event

    def record(self, event: Event, stream: Stream) -> None:
        """Put the event on the stream; returns at once."""
        if status := self._record(event, stream):
            _check(status)

    def passed(self, event: Event) -> bool:
        """Say whether the GPU has passed the event's last record; never waits."""
        status = self._query(event)
        if status == NOT_READY:
            return False
        _check(status)
        return True

    def elapsed_ms(self, first: Event, second: Event) -> float:
        """Milliseconds between two events that have both passed, as a float32."""
        value = ctypes.c_float()
        _check(self._elapsed(ctypes.byref(value), first, second))
        return value.value


def loaded_runtime() -> str | None:
    """The path of the CUDA runtime library in this process, None where there is none."""
    found = re.search(r"\S*/libcudart\.so\S*", Path("/proc/self/maps").read_text())
    return found.group() if found else None


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA runtime error {status}")
