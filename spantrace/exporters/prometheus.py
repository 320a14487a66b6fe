"""Serves what spans and cycles take as Prometheus histograms, over HTTP, while a recording runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, start_http_server

from spantrace.errors import SpantraceError
from spantrace.exporters.layout import lanes_of, processes_of
from spantrace.recording import Recording
from spantrace.settling import Settled
from spantrace.spans import SPAN_NAMES, Kind, Track

BUCKETS = tuple(float(f"{mantissa}e{exponent}") for exponent in range(-6, 1) for mantissa in (1, 2.5, 5))
"""Upper bounds in seconds, from 1 us to 5 s."""


class Prometheus:
    """`spantrace_span_seconds` by span, track, rank and kind of cycle; `spantrace_cycle_seconds`, the period, by kind.

    SpantraceError where nothing can be served at `host` and `port`.
    """

    def __init__(self, host: str, port: int) -> None:
        self._place = f"{host}:{port}"
        registry = CollectorRegistry()
        self._of_spans = Histogram("spantrace_span_seconds", "Time of one span", _SPAN, registry=registry,
                                   buckets=BUCKETS)  # fmt: skip
        self._of_cycles = Histogram("spantrace_cycle_seconds", "Time from a cycle's start to the next one's", ["kind"],
                                    registry=registry, buckets=BUCKETS)  # fmt: skip
        self._labelled: dict[tuple[str, ...], Any] = {}
        self._spans = 0
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise SpantraceError(f"cannot serve Prometheus at {self._place}: {why}; choose another port") from error

    def take(self, settled: Settled) -> None:
        """Observe the spans, and the periods of fresh cycles."""
        for labels, nanoseconds in _labelled(settled.recording):
            if (histogram := self._labelled.get(labels)) is None:
                histogram = self._labelled[labels] = self._of_spans.labels(*labels)
            histogram.observe(nanoseconds / 1e9)
            self._spans += 1
        cycles = settled.recording.cycles
        if settled.fresh:
            for kind, period in zip(cycles.kind.tolist(), cycles.period.tolist(), strict=True):
                if period >= 0:
                    self._of_cycles.labels(Kind(kind).name.lower()).observe(period / 1e9)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def told(self, recording: Recording) -> str:
        """How many spans were in the histograms."""
        return f"Prometheus: {self._spans:,} of {len(recording.spans.name):,} spans were served at {self._place}"


_SPAN = ("span", "track", "rank", "kind")


def _labelled(recording: Recording) -> Iterator[tuple[tuple[str, ...], int]]:
    """The labels and the nanoseconds of each span."""
    spans, processes = recording.spans, processes_of(recording)
    ranks = [processes[lane.process].rank for lane in lanes_of(recording)]
    columns = (spans.name, spans.track, spans.lane, recording.cycles.kind[spans.cycle], spans.end - spans.start)
    for name, track, lane, kind, length in zip(*(column.tolist() for column in columns), strict=True):
        rank = "" if ranks[lane] is None else str(ranks[lane])
        yield (SPAN_NAMES[name], Track(track).name.lower(), rank, Kind(kind).name.lower()), length
