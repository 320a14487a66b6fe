"""The text of a trace's file, plain or packed with gzip, chunk by chunk, and only what a JSON reader can take."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from spantrace.errors import SpantraceError

_GZIP = b"\x1f\x8b"
_GZIP_FORM = 16 + zlib.MAX_WBITS
_CHUNK = 1 << 18
_MOST_DIGITS = 4000
"""Python makes no integer of more than 4300 digits, and ijson's reader in C crashes where it does not."""
_TOO_MANY = b"0" * (_MOST_DIGITS + 1)
_DIGITS_ARE_0 = bytes.maketrans(b"123456789", b"0" * 9)
_DEEPEST = 100
"""What ijson keeps of each event is as long as the event lies deep, so that a file of brackets takes hours."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_MARKS = bytes(set(range(256)) - set(b'[{]}"'))


class Text:
    """The text of `file`; `cut` once packed data have ended too early."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.cut = False

    def chunks(self) -> Iterator[bytes]:
        """Pieces that are not empty; SpantraceError where the file is damaged, or too long a number or too deep."""
        before, nesting = b"", _Nesting()
        for chunk in filter(None, self._unpacked()):
            zeros = before + chunk.translate(_DIGITS_ARE_0)
            if _TOO_MANY in zeros:
                raise SpantraceError(f"it is damaged: it holds a number of over {_MOST_DIGITS:,} digits")
            before = zeros[-_MOST_DIGITS:]
            if nesting.deepest(chunk) > _DEEPEST:
                raise SpantraceError(f"it is no trace, or is damaged: its JSON is nested over {_DEEPEST} deep")
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


class _Nesting:
    """How deep lists and maps lie within one another, piece by piece of a JSON text."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = self._escaped = False

    def deepest(self, piece: bytes) -> int:
        """The greatest depth within the next piece."""
        if self._escaped:
            piece = b" " + piece[1:]
        plain = piece.replace(b"\\\\", b"  ")
        self._escaped = plain.endswith(b"\\")
        parts = plain.replace(b'\\"', b"  ").translate(_STEPS, _NO_MARKS).split(b'"')
        steps = np.frombuffer(b"".join(parts[self._in_text :: 2]), dtype=np.int8)
        self._in_text ^= len(parts) % 2 == 0
        depths = self._depth + np.cumsum(steps, dtype=np.int64)
        self._depth = int(depths[-1]) if len(depths) else self._depth
        return int(depths.max(initial=self._depth))
