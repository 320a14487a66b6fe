"""Figures of a trace computed with pandas and without any code of the importer's, and how both are held together."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from analyzers.co_saturation import gpu_busy
from analyzers.per_cycle import STEADY, gpu_rows
from spantrace.loading import load

pd = pytest.importorskip("pandas")
STEP = "ProfilerStep#"


def table_of(path: Path) -> Any:
    """The trace's whole events as a table, with start and end in nanoseconds as exact integers."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    events = json.loads(data, parse_float=Decimal, parse_int=Decimal)["traceEvents"]
    table = pd.DataFrame([one for one in events if one["ph"] == "X"])
    table["start"] = [int(value * 1000) for value in table["ts"]]
    table["end"] = table["start"] + [int(value * 1000) for value in table["dur"]]
    return table.sort_values("start", kind="stable")


def covered(rows: Any, low: int, high: int) -> int:
    """Nanoseconds of [low, high) that some row covers."""
    clipped = pd.DataFrame({"start": rows["start"].clip(low, high), "end": rows["end"].clip(low, high)})
    before = clipped["end"].cummax().shift(fill_value=low)
    return int((clipped["end"] - pd.concat([clipped["start"], before], axis=1).max(axis=1)).clip(lower=0).sum())


def same_busy(path: Path, copies: tuple[str, ...] = ("gpu_memcpy", "gpu_memset"), step: str = STEP) -> int:
    """Assert that GPU busy is the same by both, of kernels alone and with copies; how many cycles there were.

    `step` is how the annotations of the cycles begin.
    """
    recording, table = load(path), table_of(path)
    steps = table[(table["cat"] == "user_annotation") & table["name"].str.startswith(step)]
    windows = list(zip(steps["start"], steps["start"].shift(-1), strict=True))[:-1]
    for kinds, among in ((("kernel", *copies), None), (("kernel",), gpu_rows(recording, "kernels"))):
        found = gpu_busy(recording, STEADY, among)
        assert found is not None
        rows = table[table["cat"].isin(kinds)]
        assert found.tolist() == [covered(rows, int(low), int(high)) for low, high in windows]
    return len(windows)
