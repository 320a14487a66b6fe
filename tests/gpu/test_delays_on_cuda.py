"""Delays of a GPU's stream: a kernel spins for as long as asked, and the cycle takes over what holds the GPU up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from spantrace.cli.main import run  # noqa: E402
from spantrace.delays import calibrated_spin  # noqa: E402
from spantrace.loading import load  # noqa: E402
from spantrace.spans import Kind, Track  # noqa: E402

SPAN, DELAY_US = "target.forward", 1000


@pytest.mark.parametrize("us", [200, 1000, 5000])
def test_the_stream_is_busy_for_as_long_as_asked(us: int) -> None:
    spin, took = calibrated_spin(), []
    spin(1_000_000)
    for _ in range(21):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        spin(us * 1000)
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) * 1e3)
    assert np.median(took) == pytest.approx(us, rel=0.1, abs=15)


def test_the_cycle_takes_over_a_delay_of_the_gpu_before_a_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The built-in cycle waits for the GPU in every step, so that nothing hides what keeps it busy."""
    path = tmp_path / "s.spantrace"
    cycle = ["--device=cuda", "--dtype=bfloat16", "--batch=4", "--context=256", "--layers=8", "--hidden=512"]
    asked = [f"--gpu-span={SPAN}", f"--delay={DELAY_US}", "--cycles=40", "--blocks=12", "--max-slowdown=0.5"]
    assert run(["sensitivity", "built-in", *cycle, *asked, "-o", str(path), "--format=json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["sensitivity"]
    assert (found["track"], found["refused"]) == ("gpu", 0)
    assert found["slope"]["value"] == pytest.approx(1.0, abs=0.15)
    recording = load(path)
    host, gpu = (recording.durations(SPAN, track) for track in (Track.HOST, Track.GPU))
    delayed, steady = (recording.cycles.kind == kind for kind in (Kind.DELAYED, Kind.STEADY))
    held = np.nanmedian(gpu[delayed]) - np.nanmedian(gpu[steady])
    assert held == pytest.approx(DELAY_US * 1e3, rel=0.1)
    assert np.nanmedian(host[delayed]) - np.nanmedian(host[steady]) < 0.1 * DELAY_US * 1e3
