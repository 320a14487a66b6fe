"""Frames: the msgpack maps that travel over the control socket and lie one after another in a recording file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgpack
import numpy as np
from numpy.typing import NDArray

Frame = dict[str, Any]
LARGEST_REQUEST = 1 << 16
LARGEST_FRAME = 1 << 28


def encode(frame: Frame) -> bytes:
    """One frame as bytes."""
    data: bytes = msgpack.packb(frame)
    return data


class Decoder:
    """Collects received bytes and gives the whole frames in them; raises ValueError on what is no frame."""

    def __init__(self, largest: int = LARGEST_FRAME) -> None:
        # A list's head promises its length, and msgpack makes room for that before any item has come.
        most = largest // 256
        self._unpacker = msgpack.Unpacker(max_buffer_size=largest, max_array_len=most, max_map_len=most)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take in bytes and yield each frame that is now complete."""
        try:
            self._unpacker.feed(data)
            for frame in self._unpacker:
                if not isinstance(frame, dict):
                    raise ValueError(f"expected a map, got {type(frame).__name__}")
                yield frame
        except (msgpack.exceptions.UnpackException, ValueError, OverflowError) as error:
            raise ValueError(f"not a frame: {error}") from error


def read_frames(file: BinaryIO) -> Iterator[Frame]:
    """Yield the frames of a file up to its end or to the first that is cut short; ValueError on garbage."""
    decoder = Decoder()
    while data := file.read(1 << 20):
        yield from decoder.feed(data)


def plain_rows(rows: NDArray[np.int64]) -> Frame:
    """An int64 array [n, width] as a frame's fields, as quickly as can be."""
    return {"shape": list(rows.shape), "raw": rows.astype("<i8", copy=False).tobytes()}


def packed(frame: Frame) -> Frame:
    """The frame with its plain rows, if it has any, packed; ValueError where they do not fit their shape."""
    if "raw" not in frame:
        return frame
    try:
        rows = np.frombuffer(frame["raw"], dtype="<i8").reshape(frame["shape"]).astype(np.int64, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"rows are damaged: {error}") from error
    return {**{name: value for name, value in frame.items() if name != "raw"}, **pack_rows(rows)}


def pack_rows(rows: NDArray[np.int64]) -> Frame:
    """An int64 array [n, width] as a frame's fields: deltas down each column, deflated."""
    columns = np.ascontiguousarray(rows.T)
    delta = np.diff(columns, axis=1, prepend=np.zeros((columns.shape[0], 1), dtype=np.int64))
    return {"shape": list(rows.shape), "data": zlib.compress(delta.astype("<i8").tobytes(), 1)}


def unpack_rows(frame: Frame) -> NDArray[np.int64]:
    """The array that `pack_rows` packed; ValueError where the fields do not fit together."""
    try:
        rows, width = (int(n) for n in frame["shape"])
        if not (0 <= rows <= LARGEST_FRAME and 0 <= width <= LARGEST_FRAME and rows * width * 8 <= LARGEST_FRAME):
            raise ValueError("impossible shape")
        inflater = zlib.decompressobj()
        raw = inflater.decompress(frame["data"], rows * width * 8 + 1)
        if not inflater.eof:
            raise ValueError("they are more or fewer than their shape tells")
        delta = np.frombuffer(raw, dtype="<i8").reshape(width, rows)
    except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
        raise ValueError(f"rows are damaged: {error}") from error
    return np.ascontiguousarray(np.cumsum(delta, axis=1).T)
