"""Campaigns made in memory: arms in turns on one machine whose speed wanders and drifts while they run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from recordings import NEMOTRON_GPU, NEMOTRON_HOST, Work, make_recording

from analyzers import changes
from spantrace.campaign.order import ABBA, turns
from spantrace.recording import Recording

WANDER, MEMORY = 0.02, 0.98
"""How far the speed wanders (the standard deviation of its logarithm) and how much of that a cycle inherits."""
FEW = 200
"""Bootstrap samples."""


def speed(cycles: int, random: np.random.Generator, drift: float) -> NDArray[np.float64]:
    """How slow the machine is in each cycle: a wander that cycles share with their neighbours, and a steady drift."""
    steps = random.normal(0, WANDER * np.sqrt(1 - MEMORY**2), cycles)
    steps[0] = random.normal(0, WANDER)
    wander = np.array(list(accumulate(steps, lambda before, step: MEMORY * before + step)))
    return np.exp(wander + drift * np.arange(cycles) / cycles)


def campaign(
    arms: Mapping[str, Work],
    *,
    windows: int = 8,
    cycles: int = 100,
    seed: int = 0,
    drift: float = 0.0,
    interleaved: bool = True,
    on: Mapping[str, tuple[str, ...]] | None = None,
    hits: Mapping[str, int] | None = None,
    kernels: Work | None = NEMOTRON_GPU,
) -> dict[str, list[Recording]]:
    """Each arm's windows, in ABBA or one arm after the other; `arms` give the spans in which they differ from stock.

    `on` are the optimizations that the headers of an arm count, with so many `hits` in each window; they count none
    where it is not given.
    """
    names, random = list(arms), np.random.default_rng(seed)
    order = turns(len(names), windows, ABBA)
    slowness = speed(len(order) * cycles, random, drift)
    runs: dict[str, list[Recording]] = {name: [] for name in names}
    for number, index in enumerate(order if interleaved else sorted(order)):
        name = names[index]
        runs[name].append(
            make_recording(
                {**NEMOTRON_HOST, **arms[name]},
                kernels,
                cycles=cycles,
                seed=int(random.integers(2**31)),
                slowness=slowness[number * cycles : (number + 1) * cycles],
                optimizations=None
                if on is None
                else [counts(one, (hits or {}).get(one, 100)) for one in on.get(name, ())],
            )
        )
    return runs


def resample_less(patch: pytest.MonkeyPatch) -> None:
    """Draw few bootstrap samples, for tests of what does not depend on how exact an interval is; p is exact anyway."""
    drawn = changes.resampled
    patch.setattr(changes, "resampled", lambda units, stream: drawn(units, stream)[:FEW])


def counts(name: str, hits: int) -> dict[str, Any]:
    """An optimization's entry in a header; one that never fired has turned calls away."""
    fell = {} if hits else {"the batch is too small": 30}
    return {"id": name, "hits": hits, "fallbacks": sum(fell.values()), "errors": 0, "reasons": fell}
