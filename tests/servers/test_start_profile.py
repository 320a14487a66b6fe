"""What vLLM's `/start_profile` writes is read as it is: cycles by vLLM's annotations, spans by its ranges."""

from __future__ import annotations

import gzip
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from analyzers.span_table import span_table
from spantrace.cli.main import run
from spantrace.loading import load
from spantrace.spans import Kind

if TYPE_CHECKING:
    from cpu_server import CpuServer

pytestmark = pytest.mark.long

RANGES = ("target.input_prep", "target.forward", "sample", "postprocess", "draft.propose")


def test_a_trace_of_a_servers_worker(profiled: tuple[CpuServer, Path]) -> None:
    server, directory = profiled
    before = set(directory.glob("*.json.gz"))

    def ask(path: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", method="POST"), timeout=60):
            pass

    server.complete(max_tokens=16)
    ask("/start_profile")
    server.complete(["one", "two"], max_tokens=48)
    ask("/stop_profile")
    written = set(directory.glob("*.json.gz")) - before
    (path,) = [path for path in written if b"execute_context_" in gzip.decompress(path.read_bytes())]
    recording = load(path)
    assert recording.header["trace"]["cycles_by"] == "the engine's annotations"
    steady = recording.cycles.kind == Kind.STEADY
    assert steady.sum() >= 8
    assert recording.cycles.batch[steady].max() == 2
    assert Kind.PREFILL in recording.cycles.kind.tolist()
    table = span_table(recording)
    for name in RANGES:
        row = table.row(name)
        assert row is not None, name
        assert row.host is not None, name
        assert row.calls == 1 or name in ("sample", "postprocess"), name
    assert run(["report", str(path)]) == 0
