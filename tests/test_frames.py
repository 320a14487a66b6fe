"""Frames come back as they were packed, and bytes that are none raise ValueError and take no memory."""

from __future__ import annotations

import contextlib
import io
import itertools
import resource
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spantrace.frames import (
    LARGEST_FRAME,
    LARGEST_REQUEST,
    Decoder,
    encode,
    pack_rows,
    packed,
    plain_rows,
    read_frames,
    unpack_rows,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FRAMES = st.lists(st.dictionaries(st.text(), PLAIN, max_size=4), max_size=6)


def decoded(data: bytes, largest: int = LARGEST_FRAME) -> list[dict[str, Any]]:
    return list(Decoder(largest).feed(data))


@settings(max_examples=50)
@given(FRAMES, st.lists(st.integers(0, 400), max_size=6))
def test_frames_come_back_however_their_bytes_are_split(frames: list[dict[str, Any]], cuts: list[int]) -> None:
    data = b"".join(map(encode, frames))
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = Decoder()
    received = [f for start, end in itertools.pairwise(bounds) for f in decoder.feed(data[start:end])]
    assert received == frames


@settings(max_examples=50)
@given(FRAMES, st.data())
def test_a_file_that_is_cut_gives_its_whole_frames(frames: list[dict[str, Any]], data: st.DataObject) -> None:
    parts = [encode(frame) for frame in frames]
    length = data.draw(st.integers(0, sum(map(len, parts))))
    whole = sum(sum(map(len, parts[: count + 1])) <= length for count in range(len(parts)))
    assert list(read_frames(io.BytesIO(b"".join(parts)[:length]))) == frames[:whole]


@given(st.binary(max_size=400))
@settings(max_examples=300)
def test_garbage_is_a_value_error_or_maps(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert all(isinstance(frame, dict) for frame in decoded(data))


@given(st.dictionaries(st.text(), PLAIN, min_size=1, max_size=4), st.data())
def test_a_frame_with_flipped_bytes_is_a_value_error_or_maps(frame: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        assert all(isinstance(one, dict) for one in decoded(bytes(raw)))


HOSTILE = {
    "a list": b"\x90",
    "a number": b"\x07",
    "text": b"#!/bin/sh\n",
    "an int for a key": b"\x81\x01\x02",
    "a list for a key": b"\x81\x90\x02",
    "a byte that msgpack never uses": b"\xc1",
    "bad UTF-8": b"\x81\xa1\xff\x01",
    "a bad timestamp": b"\x81\xa1a\xc7\x0c\xff" + b"\xff" * 12,
    "nested maps": b"\x81\xa1a" * 100_000,
    "nested lists": b"\x81\xa1a" + b"\x91" * 100_000,
    "a list of four billion": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "nested lists of 2**15": b"\x81\xa1a" + b"\xdc\x80\x00" * 500,
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "nested lists of 2**27": b"\x81\xa1a" + b"\xdd\x08\x00\x00\x00" * 500,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_refused_without_making_room_for_them(data: bytes) -> None:
    with memory_limited(1 << 26), pytest.raises(ValueError, match="not a frame"):
        decoded(data, LARGEST_REQUEST)


def test_a_request_larger_than_allowed_is_refused() -> None:
    assert decoded(encode({"a": "x" * 60_000}), LARGEST_REQUEST)
    with pytest.raises(ValueError, match="not a frame"):
        decoded(encode({"a": "x" * 70_000}), LARGEST_REQUEST)


def test_an_endless_frame_is_refused_once_it_is_too_long() -> None:
    decoder = Decoder(LARGEST_REQUEST)
    head = b"\x81\xa1a\xdb\xff\xff\xff\xff"
    assert list(decoder.feed(head)) == []
    assert list(decoder.feed(b"x" * (LARGEST_REQUEST // 2))) == []
    with pytest.raises(ValueError, match="not a frame"):
        list(decoder.feed(b"x" * LARGEST_REQUEST))


@given(st.lists(st.tuples(INT64, INT64, INT64), max_size=30))
def test_rows_come_back(rows: list[tuple[int, int, int]]) -> None:
    array = np.array(rows, dtype=np.int64).reshape(-1, 3)
    frame = msgpack.unpackb(msgpack.packb(pack_rows(array)))
    assert np.array_equal(unpack_rows(frame), array)


@given(st.lists(st.tuples(INT64, INT64, INT64), max_size=30))
def test_plain_rows_are_packed_by_whoever_keeps_them(rows: list[tuple[int, int, int]]) -> None:
    array = np.array(rows, dtype=np.int64).reshape(-1, 3)
    frame = msgpack.unpackb(msgpack.packb({"type": "rows", **plain_rows(array)}))
    kept = packed(frame)
    assert np.array_equal(unpack_rows(kept), array)
    assert "raw" not in kept
    assert packed(kept) is kept


@pytest.mark.parametrize("damage", [{"raw": b"short"}, {"raw": None}, {"shape": [7]}, {"shape": "x"}])
def test_damaged_plain_rows_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rows are damaged"):
        packed({**plain_rows(np.arange(6).reshape(2, 3)), **damage})


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_rows_of_no_size_keep_their_shape(shape: tuple[int, int]) -> None:
    assert unpack_rows(pack_rows(np.zeros(shape, dtype=np.int64))).shape == shape


def test_times_that_follow_one_another_take_few_bytes() -> None:
    rows = np.cumsum(np.full((40_000, 3), [1, 180_000, 180_000]), axis=0)
    assert len(pack_rows(rows)["data"]) < 0.02 * rows.nbytes


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no shape": lambda frame: frame.pop("shape"),
    "no data": lambda frame: frame.pop("data"),
    "a shape of three": lambda frame: frame.update(shape=[1, 2, 3]),
    "a shape of text": lambda frame: frame.update(shape="ab"),
    "an infinite shape": lambda frame: frame.update(shape=[float("inf"), 1]),
    "more rows": lambda frame: frame.update(shape=[3, 3]),
    "fewer rows": lambda frame: frame.update(shape=[1, 3]),
    "negative rows": lambda frame: frame.update(shape=[-2, -3]),
    "no rows, widely": lambda frame: frame.update(shape=[0, 2**70]),
    "too many rows": lambda frame: frame.update(shape=[2**40, 2**40]),
    "text for data": lambda frame: frame.update(data="abc"),
    "garbage for data": lambda frame: frame.update(data=b"abc"),
    "half of the data": lambda frame: frame.update(data=frame["data"][: len(frame["data"]) // 2]),
    "data without a checksum": lambda frame: frame.update(data=frame["data"][:-4]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_rows_are_a_value_error(damage: Callable[[dict[str, Any]], object]) -> None:
    frame = pack_rows(np.arange(6).reshape(2, 3))
    damage(frame)
    with pytest.raises(ValueError, match="rows are damaged"):
        unpack_rows(frame)


def test_a_flipped_byte_in_rows_is_noticed() -> None:
    rows = np.arange(30).reshape(10, 3) ** 3
    frame = pack_rows(rows)
    for at in range(len(frame["data"])):
        changed = bytearray(frame["data"])
        changed[at] ^= 0x55
        with contextlib.suppress(ValueError):
            assert np.array_equal(unpack_rows({**frame, "data": bytes(changed)}), rows)


def test_a_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(bytes(1 << 28), 9)
    with memory_limited(1 << 27), pytest.raises(ValueError, match="rows are damaged"):
        unpack_rows({"shape": [2, 3], "data": bomb})


def test_a_promise_of_many_rows_takes_no_memory_by_itself() -> None:
    with memory_limited(1 << 27), pytest.raises(ValueError, match="rows are damaged"):
        unpack_rows({"shape": [LARGEST_FRAME // 8, 1], "data": zlib.compress(b"few")})


@contextlib.contextmanager
def memory_limited(more: int) -> Any:
    """Let this process map `more` bytes beyond what it has now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
