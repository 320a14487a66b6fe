"""The journal of a recording under way: every frame as it arrives, so that a cut at any byte leaves a readable file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from spantrace.errors import SpantraceError
from spantrace.frames import Frame, encode, packed
from spantrace.interrupts import signals_held
from spantrace.loading import load
from spantrace.recording import MAGIC, SCHEMA, Header, Recording


def journal_path(path: Path) -> Path:
    """Where the recording that will lie at `path` is journaled."""
    return path.with_name(path.name + ".part")


class Journal:
    """Appends frames to `PATH.part`; `finish()` turns it into the recording at `path`.

    What cannot go on is `kept`, and an error says so, unless its owner removes it. `follower` gets each frame that was
    written, its rows packed.
    """

    def __init__(
        self, path: Path, header: Header, *, kept: bool = True, follower: Callable[[Frame], None] | None = None
    ) -> None:
        self.path, self._kept, self._follower = path, kept, follower
        self.part = journal_path(path)
        self._frame_sizes = 0
        try:
            self._file = self.part.open("wb", buffering=0)
        except OSError as error:
            missing = f"there is no folder {path.parent}; make it" if not path.parent.is_dir() else error.strerror
            raise SpantraceError(f"cannot write {path}: {missing}") from error
        self.write({"type": MAGIC, "schema": SCHEMA, "header": {**header, "journal": True}})

    def write(self, frame: Frame) -> None:
        """Append one frame whole, its rows packed, or leave the file as it was and raise SpantraceError.

        ValueError where the frame's rows are damaged.
        """
        frame = packed(frame)
        data = encode(frame)
        try:
            if self._file.write(data) != len(data):
                raise OSError(0, "no space left")
        except OSError as error:
            os.ftruncate(self._file.fileno(), self._frame_sizes)
            self._file.seek(self._frame_sizes)
            kept = "; what was recorded is kept" if self._kept else ""
            raise SpantraceError(f"cannot write {self.part}: {error.strerror}{kept}") from error
        self._frame_sizes += len(data)
        if self._follower:
            self._follower(frame)

    def finish(self) -> Recording:
        """Join the journal, write the recording and remove the journal; SpantraceError, and the journal stays.

        Ctrl-C and SIGTERM wait until it is done.
        """
        with signals_held():
            self._file.close()
            recording = load(self.part)
            try:
                recording.save(self.path)
            except SpantraceError as error:
                if not self._kept:
                    raise
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
