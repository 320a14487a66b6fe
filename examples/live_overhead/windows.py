"""What recording costs the inter-token latency: one stream of requests, and windows of it recorded and not."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from spantrace.capture import Capture, Until
from spantrace.control import default_directory
from spantrace.journal import Journal
from spantrace.vllm_adapter.servers import find, roles

SETTLE_S = 0.05


class Stream(threading.Thread):
    """Keeps one greedy streaming request on the server and notes when each chunk arrived (ns)."""

    def __init__(self, port: int, tokens: int) -> None:
        super().__init__(daemon=True)
        self.port, self.tokens = port, tokens
        self.requests: list[list[int]] = []
        self.errors: list[str] = []
        self.going = True

    def run(self) -> None:
        number = 0
        while self.going:
            number += 1
            try:
                self._request(number)
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(repr(error))
                time.sleep(0.2)

    def _request(self, number: int) -> None:
        body = {"model": "m", "prompt": [10 + (number * 7 + i) % 900 for i in range(256)], "max_tokens": self.tokens,
                "temperature": 0, "ignore_eos": True, "skip_special_tokens": False, "stream": True}  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise http.client.HTTPException(response.read(500).decode())
        arrivals: list[int] = []
        self.requests.append(arrivals)
        for line in response:
            if line.startswith(b"data: {"):
                arrivals.append(time.perf_counter_ns())
            if not self.going:
                break
        connection.close()

    def gap_ms(self, begin: int, end: int) -> float:
        """Mean time between two chunks of one request within a window, in ms; NaN where there are none."""
        inside = [np.array([at for at in arrivals[1:] if begin <= at <= end]) for arrivals in self.requests[-3:]]
        gaps = [np.diff(arrivals) for arrivals in inside if len(arrivals) > 1]
        return float(np.concatenate(gaps).mean() / 1e6) if gaps else float("nan")


@contextmanager
def recording(port: int, scratch: Path, every: int) -> Iterator[Capture]:
    """Record the server at a port into `scratch`, which is thrown away; RuntimeError where that did not work.

    Of so many runs of cycles `every` says in which one spans are recorded.
    """
    members = roles(find(f":{port}", default_directory()))
    with Journal(scratch, {"options": {}}, force=True) as journal:
        with Capture(default_directory(), members, journal, {"gpu": True, "detail_every": every}) as capture:
            yield capture
            if not (capture.stop() and capture.cycles):
                raise RuntimeError("the recording broke off")
        journal.discard()


def two_windows(stream: Stream, wait: Callable[[float], object], seconds: float) -> list[float]:
    """Let the cycles under way end, then the mean gaps of two windows, one after the other."""
    wait(SETTLE_S)
    gaps = []
    for _ in range(2):
        begin = time.perf_counter_ns()
        wait(seconds)
        gaps.append(stream.gap_ms(begin, time.perf_counter_ns()))
    return gaps


def overhead(stream: Stream, port: int, total: float, seconds: float, scratch: Path, every: int) -> dict[str, Any]:
    """For `total` seconds windows in the order A BB AA BB ... A, which is ABBA again and again.

    The hooks are in force in B only; the recording goes on in both, and in A nothing of it runs.
    """
    bare: list[float] = []
    recorded: list[float] = []
    end = time.monotonic() + total
    with recording(port, scratch, every) as capture:
        while time.monotonic() < end:
            capture.pause()
            bare += two_windows(stream, time.sleep, seconds)
            capture.resume()
            recorded += two_windows(stream, lambda wait: capture.run(Until(seconds=wait)), seconds)
        capture.pause()
        bare += two_windows(stream, time.sleep, seconds)
        capture.resume()
    return compare(np.array(bare[1:-1]), np.array(recorded))


def compare(a: NDArray[np.float64], b: NDArray[np.float64]) -> dict[str, Any]:
    """Neighbouring windows a[i], b[i], a switch between them: the change in %, with 95% intervals of two kinds.

    The mean with Student's t, which one disturbed window can move, and the pseudo-median with the interval that the
    signed-rank test does not reject (Hodges and Lehmann, Estimates of location based on rank tests, 1963).
    """
    change = (b / a - 1) * 100
    change = change[np.isfinite(change)]
    low, high = stats.t.interval(0.95, len(change) - 1, change.mean(), stats.sem(change))
    first, second = np.triu_indices(len(change))
    walsh = np.sort((change[first] + change[second]) / 2)
    n = len(change)
    cut = max(int(n * (n + 1) / 4 - stats.norm.ppf(0.975) * np.sqrt(n * (n + 1) * (2 * n + 1) / 24)), 0)
    return {
        "bare_ms": float(np.nanmedian(a)),
        "recorded_ms": float(np.nanmedian(b)),
        "mean_percent": [float(change.mean()), float(low), float(high)],
        "typical_percent": [float(np.median(walsh)), float(walsh[cut]), float(walsh[-cut - 1])],
        "a_to_a_percent": float(np.nanmean(np.abs(a[2::2] / a[1:-1:2] - 1)) * 100),
        "pairs": n,
        "windows_ms": [a.round(4).tolist(), b.round(4).tolist()],
    }
