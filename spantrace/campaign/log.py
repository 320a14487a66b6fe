"""The log of a campaign, which is only appended to: one JSON object a line, checked when it is read."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Any

from spantrace.errors import SpantraceError
from spantrace.toml_tables import checked

Entry = dict[str, Any]
CREATED, STARTED, DONE, FAILED, STOPPED = "created", "started", "done", "failed", "stopped"
SWITCHED, RESTORED = "switched", "restored"
OF_A_WINDOW = (STARTED, DONE, FAILED, STOPPED)
_WINDOW: dict[str, type] = {"window": int, "arm": str}
_FIELDS: dict[str, dict[str, type]] = {
    CREATED: {"plan": str, "gates": str},
    STARTED: _WINDOW,
    DONE: {**_WINDOW, "code": str, "seconds": float, "others": float, "load": dict, "notes": list},
    FAILED: {**_WINDOW, "why": str},
    STOPPED: _WINDOW,
    SWITCHED: {"server": int, "on": list},
    RESTORED: {},
}
"""What an entry of each event has beside its time, `at`, at least."""


class Log:
    """The entries in a file, none where it is not there; to add some, open it, which one process can at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self.entries = self._read()

    @property
    def opened(self) -> bool:
        """Whether this process can add to it."""
        return self._file is not None

    def open(self) -> None:
        """Lock it and read what is there by now, without a last line that was cut off; OSError as open raises it."""
        self._file = self.path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SpantraceError(f"another process runs the campaign in {self.path.parent}; wait for it") from error
        self.entries = self._read()

    def close(self) -> None:
        """Let others add to it; an empty one is removed."""
        if self._file:
            if self.path.exists() and not self.entries:
                self.path.unlink()
            self._file.close()
            self._file = None

    def append(self, event: str, **more: Any) -> None:
        """Add an entry, which is on the disk then; SpantraceError, with the file as it was, where there is no room."""
        assert self._file is not None, "the log is not open"
        entry = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **more}
        line = json.dumps(entry).encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError(0, "no space left")
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(size)
            raise SpantraceError(f"cannot write {self.path}: {error.strerror}; make room and go on") from error
        self.entries.append(entry)

    def damaged(self, why: object) -> SpantraceError:
        """What is said of a file that no campaign wrote."""
        return SpantraceError(f"{self.path} is damaged ({why}); start another campaign (-o)")

    def _read(self) -> list[Entry]:
        """Every entry; SpantraceError for a damaged one. A last line that was cut off is cut from an open file."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SpantraceError(f"cannot read {self.path}: {error.strerror}") from error
        whole = text[: text.rfind(b"\n") + 1]
        if self._file and whole != text:
            self._file.truncate(len(whole))
        try:
            entries = [_entry(line, number) for number, line in enumerate(whole.decode().splitlines(), start=1)]
            if entries and entries[0]["event"] != CREATED:
                raise ValueError("it does not begin with how the campaign was created")
        except (ValueError, SpantraceError) as error:
            raise self.damaged(error) from error
        return entries


def _entry(line: str, number: int) -> Entry:
    """The entry of a line; ValueError or SpantraceError where it is none. Events of later versions are kept."""
    entry, what = json.loads(line), f"line {number}"
    if not isinstance(entry, dict):
        raise ValueError(f"{what} is no object")
    known = {"at": str, "event": str, **_FIELDS.get(str(entry.get("event")), {})}
    if lacking := [key for key in known if key not in entry]:
        raise ValueError(f"{what} has no {lacking[0]}")
    checked({key: entry[key] for key in known}, known, what)
    if entry["event"] == DONE:
        checked(entry["load"], dict.fromkeys(entry["load"], float), f"the load of {what}")
        if not all(isinstance(note, str) for note in entry["notes"]):
            raise ValueError(f"the notes of {what} are no texts")
    return dict(entry)
