"""Spans of a real server under load are held up: by as much as asked, and not any more afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import USUAL
from live import DELAY, NS, assert_clean

from spantrace.loading import load
from spantrace.spans import Kind
from spantrace.windows import WINDOWS

if TYPE_CHECKING:
    from conftest import AskWitness, Serve

    from tests.conftest import Cli

pytestmark = pytest.mark.timed


def test_a_held_up_span_gets_longer_by_the_delay_and_is_as_before_afterwards(
    serve: Serve, witness: AskWitness, cli: Cli, tmp_path: Path
) -> None:
    server, path = serve(**USUAL, allow_delays=True), tmp_path / "s.spantrace"
    seer = witness(server)
    spans = ("schedule", "target.metadata", "draft.forward")
    seer.remember()
    with server.load(1) as requests:
        asked = [word for span in spans for word in ("--span", span)]
        where = ("-o", str(path), "--format", "json")
        said = cli("sensitivity", f":{server.port}", *asked, *DELAY, "--blocks", "4", *where, timeout=300)
        assert said.returncode == 0, said.stderr
        assert seer.changed() == []
    assert requests.errors == []
    recording = load(path)
    assert_clean(recording)
    found = {one["span"]: one for one in json.loads(said.stdout)["sensitivity"]}
    assert sorted(found) == sorted(spans)
    for span in spans:
        # On a busy machine a block may hold too few cycles to count.
        assert found[span]["blocks"] in (3, 4)
        assert found[span]["refused"] == 0
        assert 0.8 * NS < found[span]["delay_us"] * 1000 <= NS
        grew = _median(recording, span, span) - _median(recording, span, "")
        assert 0.7 * NS < grew < 1.5 * NS, span
        assert found[span]["slope"]["high"] > 0.5


def _median(recording: Any, span: str, delayed: str) -> float:
    """The median of a span in the windows in which `delayed` was, or in the steady cycles where it is empty."""
    cycles, took = recording.cycles, recording.durations(span)
    chosen = cycles.kind == Kind.STEADY
    if delayed:
        chosen = np.zeros(len(cycles), dtype=bool)
        for window in recording.header[WINDOWS]:
            if window["span"] == delayed and window["ns"]:
                chosen |= (cycles.start >= window["begin_ns"]) & (cycles.end <= window["end_ns"])
        chosen &= cycles.kind == Kind.DELAYED
    return float(np.nanmedian(took[chosen]))
