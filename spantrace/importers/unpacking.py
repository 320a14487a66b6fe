"""The text of a trace's file, plain or packed with gzip, chunk by chunk, and only what a JSON reader can take."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from spantrace.errors import SpantraceError

_GZIP = b"\x1f\x8b"
_GZIP_FORM = 16 + zlib.MAX_WBITS
_CHUNK = 1 << 18
_MOST_DIGITS = 4000
"""Python makes no integer of more than 4300 digits, and ijson's reader in C crashes where it does not."""
_TOO_MANY = b"0" * (_MOST_DIGITS + 1)
_DIGITS_ARE_0 = bytes.maketrans(b"123456789", b"0" * 9)


class Text:
    """The text of `file`; `cut` once packed data have ended too early."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.cut = False

    def chunks(self) -> Iterator[bytes]:
        """Pieces that are not empty; SpantraceError where the file is damaged or holds too long a number."""
        before = b""
        for chunk in filter(None, self._unpacked()):
            zeros = before + chunk.translate(_DIGITS_ARE_0)
            if _TOO_MANY in zeros:
                raise SpantraceError(f"it is damaged: it holds a number of over {_MOST_DIGITS:,} digits")
            before = zeros[-_MOST_DIGITS:]
            yield chunk

    def _unpacked(self) -> Iterator[bytes]:
        packed = self._file.read(len(_GZIP)) == _GZIP
        self._file.seek(0)
        if not packed:
            yield from iter(lambda: self._file.read(_CHUNK), b"")
            return
        inflater, data = zlib.decompressobj(_GZIP_FORM), b""
        try:
            while data := inflater.unconsumed_tail or inflater.unused_data or self._file.read(_CHUNK):
                if inflater.eof:
                    inflater = zlib.decompressobj(_GZIP_FORM)
                yield inflater.decompress(data, _CHUNK)
        except zlib.error as error:
            raise SpantraceError(f"it is damaged: {error}; copy it anew") from error
        self.cut = not inflater.eof
