"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP, while a recording runs.

Each cycle is a trace, each span a child of the one around it. A thread sends them in batches from a queue with a bound:
what a slow or dead collector does not take is left out, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from spantrace import __version__
from spantrace.errors import SpantraceError
from spantrace.exporters.layout import lanes_of, processes_of, told_cycles
from spantrace.recording import Header, Recording
from spantrace.settling import Settled
from spantrace.shareable import shareable_header
from spantrace.spans import PARENT, SPAN_NAMES, Track

BATCH, MOST_BATCHES = 512, 256
TIMEOUT_S, CLOSE_S = 5.0, 5.0
_PATH = "/v1/traces"
_SCOPE = InstrumentationScope("spantrace", __version__)


def endpoint(url: str) -> str:
    """The address to send to: /v1/traces where the URL has no path; SpantraceError where it is no URL of HTTP."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known:
        raise SpantraceError(f"{url} is no address of a collector; give one like http://localhost:4318")
    return urlunsplit(parts._replace(path=_PATH)) if parts.path in ("", "/") else url


class Otlp:
    """Sends to a collector at `url`; SpantraceError where that is no address."""

    def __init__(self, url: str) -> None:
        address = endpoint(url)
        parts = urlsplit(address)
        self._place = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        _hush()
        self._exporter = OTLPSpanExporter(endpoint=address, timeout=TIMEOUT_S)
        self._traces = _Traces()
        self._batches: queue.Queue[list[Any]] = queue.Queue(MOST_BATCHES)
        self._sent = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="spantrace-otlp", daemon=True)
        self._thread.start()

    def take(self, settled: Settled) -> None:
        """Put the spans into the queue, as far as it has room."""
        spans = list(self._traces.spans(settled))
        with contextlib.suppress(queue.Full):
            for first in range(0, len(spans), BATCH):
                self._batches.put_nowait(spans[first : first + BATCH])

    def close(self) -> None:
        """Send what is in the queue, for some seconds at most and only while the collector takes it."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        self._exporter.shutdown()
        self._thread.join(1.0)

    def told(self, recording: Recording) -> str:
        """How many spans the collector took."""
        total = len(recording.spans.name)
        rest = "; the recording holds all of them" if self._sent < total else ""
        return f"OTLP: the collector at {self._place} took {self._sent:,} of {total:,} spans{rest}"

    def _work(self) -> None:
        while not (self._closing.is_set() and self._batches.empty()):
            with contextlib.suppress(queue.Empty):
                batch = self._batches.get(timeout=0.1)
                if self._export(batch):
                    self._sent += len(batch)
                elif self._closing.is_set():
                    return

    def _export(self, batch: list[Any]) -> bool:
        try:
            taken: bool = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # the exporter of older releases lets through what its transport raises
            return False
        return taken


def _hush() -> None:
    """Let the exporter's package print nothing: what a collector did not take is told at the end."""
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


class _Traces:
    """Makes spans of OpenTelemetry, times on the wall clock; ids follow from a random key and a cycle's begin."""

    def __init__(self) -> None:
        self._key = random.SystemRandom().randbytes(8)

    def spans(self, settled: Settled) -> Iterator[Any]:
        """The spans, each after the one around it."""
        recording = settled.recording
        header, cycles = shareable_header(recording.header), list(told_cycles(recording))
        resource, wall = _resource(header), int(header.get("monotonic_to_realtime_ns") or 0)
        lanes, roots = _lane_attributes(recording), [self._root(start) for start in recording.cycles.start.tolist()]
        around: dict[tuple[int, int, str | None], tuple[Any, int]] = {}
        spans = recording.spans
        order = np.lexsort((spans.name, -spans.end, spans.start))
        columns = (spans.name, spans.track, spans.lane, spans.cycle, spans.start, spans.end)
        for number, track, lane, cycle, start, end in zip(*(column[order].tolist() for column in columns), strict=True):
            name, root = SPAN_NAMES[number], roots[cycle]
            whole = name == "cycle" and track == Track.HOST
            parent, until = around.get((lane, cycle, PARENT[name]), (root, end))
            context = root if whole else _context(root.trace_id, random.getrandbits(64) or 1)
            around[lane, cycle, name] = context, end
            more = _told(cycles[cycle]) if whole else {"spantrace.step": cycles[cycle]["step"]}
            yield ReadableSpan(
                name=name,
                context=context,
                parent=None if whole else parent if until >= end else root,
                resource=resource,
                attributes={**lanes[lane], "spantrace.track": Track(track).name.lower(), **more},
                start_time=start + wall,
                end_time=end + wall,
                instrumentation_scope=_SCOPE,
            )

    def _root(self, start: int) -> Any:
        """The context of the cycle that began then, also for its GPU spans that come later."""
        digest = blake2b(start.to_bytes(8, "big", signed=True), digest_size=24, key=self._key).digest()
        return _context(int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1)


def _context(trace: int, span: int) -> Any:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _resource(header: Header) -> Any:
    """What is recorded, without what a resource's detectors would find in the environment and the command line."""
    server, gpu = header["server"] or {}, header["gpu"] or {}
    known = {f"spantrace.{key}": server.get(key) for key in ("model", "drafter", "method", "vllm")}
    known["spantrace.gpu"] = gpu.get("name")
    return Resource({"service.name": "spantrace", **{key: value for key, value in known.items() if value is not None}})


def _lane_attributes(recording: Recording) -> list[dict[str, Any]]:
    """Of each lane the attributes of its spans."""
    processes, found = processes_of(recording), []
    for lane in lanes_of(recording):
        one = processes[lane.process]
        about = {"process.pid": one.pid, "spantrace.process": one.role, "spantrace.thread": lane.thread}
        found.append(about if one.rank is None else {**about, "spantrace.rank": one.rank})
    return found


def _told(cycle: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a cycle, whose number within what has settled means nothing."""
    return {f"spantrace.{key}": value for key, value in cycle.items() if key != "cycle"}
