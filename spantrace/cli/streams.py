"""stdin, stdout and stderr as every command may count on them, also where they are closed or full."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class _Stdout(io.FileIO):
    """Says which file it is that cannot be written, once: what comes after that, at the exit too, is dropped."""

    def write(self, data: Any, /) -> int:
        """Write, or raise SpantraceError, BrokenPipeError where the reader has left."""
        from spantrace.errors import SpantraceError

        try:
            return super().write(data) or 0
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            why = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise SpantraceError(f"cannot write to stdout: {why}; send it elsewhere") from error


class _Stderr(io.FileIO):
    """Drops what it cannot write, so that no message makes a command fail."""

    def write(self, data: Any, /) -> int:
        """Write what can be written; all of it counts as written."""
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def prepare() -> None:
    """Have all three open, so that no file of a command gets the number of a closed one, and say what stdout refuses.

    A closed stdout still refuses what is written to it.
    """
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)
    sys.stdout = _text(_Stdout(1, "w", closefd=False), sys.stdout, "strict", lines=os.isatty(1))
    sys.stderr = _text(_Stderr(2, "w", closefd=False), sys.stderr, "backslashreplace", lines=True)


def _text(raw: io.FileIO, before: Any, errors: str, *, lines: bool) -> io.TextIOWrapper:
    """Text for `raw` as Python had set it up in `before`, which is None where the descriptor was closed."""
    encoding, errors = (before.encoding, before.errors) if before else ("utf-8", errors)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=lines)
