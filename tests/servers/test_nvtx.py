"""`record --nvtx` pushes and pops every span in the NVTX domain "spantrace"; otherwise nothing touches NVTX."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from conftest import USUAL
from live import MANY, assert_clean, live, wait_until

from spantrace.loading import load
from spantrace.recording import Recording
from spantrace.spans import SPAN_ID, SPAN_NAMES

if TYPE_CHECKING:
    from conftest import AskWitness, Serve

DOMAIN = "spantrace"


def counts(directory: Path, pid: int) -> tuple[int, int]:
    """Pushes and pops of the domain in one process so far."""
    file = directory / f"{pid}.{DOMAIN}"
    return struct.unpack("QQ", file.read_bytes()) if file.exists() else (0, 0)


def test_pushes_and_pops_per_domain(serve: Serve, witness: AskWitness, nvtx_counts: Path, tmp_path: Path) -> None:
    server = serve(**USUAL)
    seer = witness(server)
    pids = (seer.engine, *seer.workers)

    def record(name: str, *options: str) -> Recording:
        with live(server, tmp_path / name, *MANY, "--warmup", "0", *options):
            server.complete(max_tokens=32)
            server.speculation()
        return load(tmp_path / name)

    record("without.spantrace")
    assert [counts(nvtx_counts, pid) for pid in pids] == [(0, 0)] * len(pids)
    recording = record("with.spantrace", "--nvtx")
    assert_clean(recording)
    server.complete(max_tokens=1)
    for pid in pids:
        wait_until(lambda pid=pid: len(set(counts(nvtx_counts, pid))) == 1, "as many pops as pushes")
        named = (nvtx_counts / f"{pid}.{DOMAIN}.names").read_text().splitlines()
        assert ("schedule" if pid == seer.engine else "target.forward") in named
        assert set(named) <= set(SPAN_NAMES)
    pushes = {pid: counts(nvtx_counts, pid)[0] for pid in pids}
    assert min(pushes.values()) > len(recording.cycles)
    wrapped = recording.spans.name != SPAN_ID["target.input_prep"]  # which is drawn, not wrapped
    assert sum(pushes.values()) >= wrapped.sum()
    record("after.spantrace")
    assert {pid: counts(nvtx_counts, pid)[0] for pid in pids} == pushes
