"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from spantrace.errors import SpantraceError


@contextlib.contextmanager
def written_whole(path: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to write that lies at `path` only once it is whole, in place of what is there then if `replace`.

    SpantraceError where it cannot be written, or must not be; then nothing of it is left.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        if replace:
            temporary.replace(path)
        else:
            _put_where_nothing_is(temporary, path)
    except FileExistsError as error:
        raise SpantraceError(f"cannot write {path}: a file has appeared there, which is left alone") from error
    except OSError as error:
        raise SpantraceError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _put_where_nothing_is(temporary: Path, path: Path) -> None:
    """FileExistsError where something lies at `path`, without a moment between the look and the deed."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # there are file systems without links
        path.touch(exist_ok=False)
        try:
            temporary.replace(path)
        except OSError:
            path.unlink()
            raise
