"""Traces whose JSON is nested deeper than any profiler's: one sentence, in little memory and time."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced import cycles, save

from spantrace.errors import SpantraceError
from spantrace.importers.unpacking import Text, _Nesting
from spantrace.loading import load

pytestmark = pytest.mark.timed

PROGRAM = """
import re, sys
from pathlib import Path
from spantrace.cli.main import run
print(run(["report", sys.argv[1]]), re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
"""
DEEP = 100_000
MOST_MB, MOST_S = 300, 30.0
WHERE = {
    "at the beginning": b"[" * DEEP,
    "closed again": b"[" * DEEP + b"]" * DEEP,
    "maps": b'{"a":' * DEEP,
    "before the events": b'{"x": ' + b"[" * DEEP + b"]" * DEEP + b', "traceEvents": []}',
    "in an event": b'{"traceEvents": [{"args": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}]}",
    "behind the events": b'{"traceEvents": [], "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "in our header": b'{"spantrace": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b', "traceEvents": []}',
    "behind a text of closing brackets": b'{"x": "' + b"]" * DEEP + b'\\"", "traceEvents": ' + b"[" * DEEP,
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("data", WHERE.values(), ids=WHERE)
def test_a_deep_trace_is_one_sentence(data: bytes, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(SpantraceError, match="its JSON is nested over 100 deep") as told:
        load(path)
    assert told.value.exit_code == 2


def test_it_takes_little_memory_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": ' + b"[" * (100 << 20), compresslevel=1))
    began = time.monotonic()
    told = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
    assert told.stderr == f"spantrace: {path}: it is no trace, or is damaged: its JSON is nested over 100 deep\n"
    code, peak_kb = map(int, told.stdout.split())
    assert code == 2
    assert peak_kb / 1024 < MOST_MB
    assert time.monotonic() - began < MOST_S


def test_texts_may_hold_any_brackets(tmp_path: Path) -> None:
    events = cycles(20)
    for event in events:
        event["args"] = {**event.get("args", {}), "text": '[{\\"[' * 50, "deep": json.loads("[" * 90 + "]" * 90)}
    named = [{**events[0], "name": "[{" * 40_000 + '\\" \\\\'}]
    plain = load(save(cycles(20), tmp_path / "a.json"))
    assert len(load(save([*events, *named], tmp_path / "b.json")).cycles) == len(plain.cycles)


VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab[]{}"\\/\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='a[]{}"\\'), inner, max_size=4),
    max_leaves=40,
)


def depth(value: Any) -> int:
    inner = value if isinstance(value, list) else [*value.values()] if isinstance(value, dict) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES, st.integers(1, 7))
def test_the_depth_is_that_of_the_value_however_it_is_cut(value: Any, size: int) -> None:
    text, nesting = json.dumps(value).encode(), _Nesting()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert max(nesting.deepest(piece) for piece in pieces) == depth(value)
    assert nesting.deepest(b" ") == 0


@pytest.mark.parametrize("ahead", [0, (1 << 18) - 50, (1 << 18) - 1])
def test_the_limit_holds_across_chunks(ahead: int) -> None:
    fits = b" " * ahead + b"[" * 100 + b"]" * 100
    assert b"".join(Text(io.BytesIO(fits)).chunks()) == fits
    with pytest.raises(SpantraceError, match="over 100 deep"):
        list(Text(io.BytesIO(b" " * ahead + b"[" * 101 + b"]" * 101)).chunks())
