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


def taken(path: Path) -> SpantraceError:
    """That a file is there which was not to be overwritten."""
    return SpantraceError(f"{path} exists; choose another name or add --force")


def lies_in(part: Path) -> str:
    """Where what was recorded lies once it could not be put into its place, and what to do with it."""
    return f"{part} holds what was recorded, and can be renamed, or reported on as it is"


class Journal:
    """Appends frames to `PATH.part`; `finish()` turns it into the recording at `path`.

    Neither takes the place of a file that is there, unless by `force`. What cannot go on is `kept`, and an error says
    so, unless its owner removes it. `follower` gets each frame that was written, its rows packed.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        *,
        force: bool = False,
        kept: bool = True,
        follower: Callable[[Frame], None] | None = None,
    ) -> None:
        self.path, self._force, self._kept, self._follower = path, force, kept, follower
        self.part = journal_path(path)
        self._frame_sizes = 0
        try:
            self._file = self.part.open("wb" if force else "xb", buffering=0)
        except FileExistsError as error:
            raise taken(self.part) from error
        except OSError as error:
            raise SpantraceError(f"cannot write {path}: {error.strerror}") from error
        self.write({"type": MAGIC, "schema": SCHEMA, "header": {**header, "journal": True}})
        self._head_size = self._frame_sizes

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
                recording.save(self.path, replace=self._force)
            except SpantraceError as error:
                if not self._kept:
                    raise
                raise SpantraceError(f"{error}; {lies_in(self.part)}") from error
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
        if error is not None and self._frame_sizes == self._head_size:
            self.discard()
        self._file.close()
