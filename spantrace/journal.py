"""The journal of a recording under way: every frame as it arrives, so that a cut at any byte leaves a readable file."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from spantrace.errors import SpantraceError
from spantrace.frames import Frame, encode
from spantrace.recording import MAGIC, SCHEMA, Header, Recording


def journal_path(path: Path) -> Path:
    """Where the recording that will lie at `path` is journaled."""
    return path.with_name(path.name + ".part")


class Journal:
    """Appends frames to `PATH.part`; `finish()` turns it into the recording at `path`."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.part = journal_path(path)
        self._frame_sizes = 0
        try:
            self._file = self.part.open("wb", buffering=0)
        except OSError as error:
            raise SpantraceError(f"cannot write {self.part}: {error.strerror}") from error
        self.write({"type": MAGIC, "schema": SCHEMA, "header": {**header, "journal": True}})

    def write(self, frame: Frame) -> None:
        """Append one frame whole, or leave the file as it was and raise SpantraceError."""
        data = encode(frame)
        try:
            if self._file.write(data) != len(data):
                raise OSError(0, "no space left")
        except OSError as error:
            os.ftruncate(self._file.fileno(), self._frame_sizes)
            raise SpantraceError(f"cannot write {self.part}: {error.strerror}; what was recorded is kept") from error
        self._frame_sizes += len(data)

    def finish(self) -> Recording:
        """Join the journal, write the recording and remove the journal; SpantraceError, and the journal stays."""
        self._file.close()
        recording = Recording.load(self.part)
        try:
            recording.save(self.path)
        except SpantraceError as error:
            raise SpantraceError(f"{error}; {self.part} holds what was recorded") from error
        self.part.unlink()
        return recording

    def discard(self) -> None:
        """Remove a journal that holds nothing worth keeping."""
        self._file.close()
        self.part.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def complete_header(header: Header, frames: list[Frame]) -> Header:
    """The header with what the processes said of themselves, of the server and of their health at the end."""
    processes: dict[int, dict[str, Any]] = {}
    full: Header = {name: value for name, value in header.items() if name != "journal"}
    full.setdefault("server", {})
    for frame in frames:
        index = frame.get("process", -1)
        if frame["type"] == "armed":
            processes[index] = {"lost": 0, "hook_errors": 0, "first_error": "", "sites": [], **frame["about"]}
            full["calibration"] = {**full.get("calibration", {}), **frame["calibration"]}
        elif frame["type"] == "described":
            known = {key: value for key, value in frame["server"].items() if value is not None}
            full["server"] = {**frame["server"], **full["server"], **known}
            full["gpu"] = frame["gpu"] and {**_state_of(frame["gpu"]["uuid"], full.get("gpus") or []), **frame["gpu"]}
        elif frame["type"] in ("health", "stopped"):
            processes[index].update(frame["health"], sites=frame["sites"], graphs=frame.get("graphs", {}))
            processes[index]["stopped"] = frame["type"] == "stopped"
    records = sum(about.get("gpu_records", 0) for about in processes.values())
    timed = sum(about.get("gpu_cycles", 0) for about in processes.values())
    full.setdefault("calibration", {})["gpu_events_per_cycle"] = records / timed if timed else 0.0
    full.pop("gpus", None)
    full["processes"] = [processes[index] for index in sorted(processes)]
    return full


def _state_of(uuid: str, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """What was seen of the GPU with that uuid before the recording, with or without the uuid's prefix."""
    return next((gpu for gpu in gpus if gpu["uuid"].removeprefix("GPU-") == uuid.removeprefix("GPU-")), {})
