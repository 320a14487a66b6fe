"""Whether a saving came out of the cycle, where some of the target spans drown others in noise."""

from __future__ import annotations

import numpy as np
import pytest
from campaigns import counts, resample_less
from recordings import NEMOTRON_HOST, make_recording

from analyzers.attribution import STOCK, STOCK_AGAIN, Attribution, attribute
from analyzers.conversion import Conversion
from spantrace.cli.attributing import attribution_document
from spantrace.recording import Recording
from spantrace.tables import markdown

SURE, NOISY = "sample", "postprocess"


@pytest.fixture(autouse=True)
def _resample_less(monkeypatch: pytest.MonkeyPatch) -> None:
    resample_less(monkeypatch)


def windows(first: int, saved_ms: float, noise_ms: float) -> list[Recording]:
    """Eight windows of an arm that saves so much of one target, the other one wandering from window to window."""
    random = np.random.default_rng(first)
    works = [
        {**NEMOTRON_HOST, SURE: NEMOTRON_HOST[SURE] - saved_ms, NOISY: 2.0 + noise_ms * random.uniform(-1, 1)}
        for _ in range(8)
    ]
    on = [counts("fix", 9)] if saved_ms else []
    return [
        make_recording(work, None, cycles=60, seed=first + index, optimizations=on) for index, work in enumerate(works)
    ]


def found(saved_ms: float, noise_ms: float) -> Attribution:
    runs = {
        STOCK: windows(0, 0, noise_ms),
        STOCK_AGAIN: windows(100, 0, noise_ms),
        "fix": windows(200, saved_ms, noise_ms),
    }
    return attribute(runs, {"fix": frozenset({"fix"})}, {"fix": (SURE, NOISY)})


def of(campaign: Attribution) -> Conversion:
    arm = campaign.arm("fix")
    assert arm is not None
    assert arm.conversion is not None
    return arm.conversion


def test_a_saving_that_another_target_drowns_is_unclear_and_not_none() -> None:
    campaign = found(0.3, 1.5)
    assert of(campaign).verdict == "sum not told"
    row = next(row for row in attribution_document(campaign).table.rows if row.label == "fix")
    assert row.cells["converted"] == "unclear"
    said = "fix saved time in sample.host, but in all that is unclear: the sum of its spans is not told from noise"
    assert said in markdown(attribution_document(campaign))


def test_what_no_target_saved_is_no_saving() -> None:
    assert of(found(0.001, 1.5)).verdict == "nothing saved"
    assert of(found(0.3, 0.01)).verdict == "converted"
    assert of(found(-0.3, 0.01)).verdict == "nothing saved"
