"""Writes a recording as Perfetto's own trace: track events, which its page and its trace processor read.

Each thread or stream is a track of its process, and each span a slice that nests in those around it; a GPU span is
joined by a flow to the host span that launched it. Slices that overlap without one holding the other go to tracks of
the same name, which Perfetto draws as one. Times are nanoseconds of CLOCK_MONOTONIC, with a snapshot that ties it to
the wall clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import BuiltinClock, TracePacket, TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from spantrace.errors import SpantraceError
from spantrace.exporters.layout import lanes_of, launches, processes_of, told_cycles, told_header
from spantrace.files import written_whole
from spantrace.naming import Ints
from spantrace.recording import Recording
from spantrace.spans import SPAN_NAMES, WAITS, Track

SUFFIX = ".pftrace"
_MONOTONIC, _REALTIME = BuiltinClock.BUILTIN_CLOCK_MONOTONIC, BuiltinClock.BUILTIN_CLOCK_REALTIME
_SEQUENCE = 1


def write(recording: Recording, path: Path) -> None:
    """Write the trace; SpantraceError where it cannot be written, and then there is none."""
    if recording.spans.start.min(initial=0) < 0:
        raise SpantraceError("its times begin before 0, which Perfetto has no numbers for; choose another form")
    with written_whole(path) as file:
        _write(recording, _Packets(file))


def _write(recording: Recording, packets: _Packets) -> None:
    """Write what the trace is of, and then track after track."""
    header, spans = told_header(recording), recording.spans
    began = int(spans.start[0]) if len(spans.start) else 0
    packets.clocks(began, int(header.get("monotonic_to_realtime_ns") or 0))
    owners = [
        packets.track(
            process={"pid": one.pid, "process_name": one.role if one.rank is None else f"{one.role} rank {one.rank}"},
            child_ordering=TrackDescriptor.EXPLICIT,
        )
        for one in processes_of(recording)
    ]
    about = packets.track(parent_uuid=owners[0], name="recording")
    packets.event(TrackEvent.TYPE_INSTANT, about, began, "spantrace", about={"header": header})
    slices = _Slices(recording, packets)
    for number, lane in enumerate(lanes_of(recording)):
        here = spans.lane == number
        host, gpu = (np.flatnonzero(here & (spans.track == track)) for track in (Track.HOST, Track.GPU))
        for rows, name in ((host, lane.thread), (gpu, "GPU stream" if len(host) else lane.thread)):
            if len(rows):
                slices.write(rows, parent_uuid=owners[lane.process], name=name, sibling_order_rank=number + 1)


class _Packets:
    """Writes packets, numbering the tracks as they come."""

    def __init__(self, file: BinaryIO) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._tracks = 0

    def clocks(self, monotonic: int, offset: int) -> None:
        """Say which clock the times are of, and what the wall clock showed at one of them."""
        packet = self._packet()
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.clock_snapshot.primary_trace_clock = _MONOTONIC
        for clock, time in ((_MONOTONIC, monotonic), (_REALTIME, monotonic + offset)):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=max(0, time))
        self._builder.write_packet(packet)

    def track(self, **described: Any) -> int:
        """Describe a new track; returns its id."""
        self._tracks += 1
        packet = self._packet()
        packet.track_descriptor.CopyFrom(TrackDescriptor(uuid=self._tracks, **described))
        self._builder.write_packet(packet)
        return self._tracks

    def event(self, kind: Any, track: int, time: int, name: str = "", *, about: Any = None, **more: Any) -> None:
        """Write an event with `about` as its annotations, texts and numbers as such and the rest as JSON."""
        packet = self._packet()
        packet.timestamp, packet.timestamp_clock_id = time, _MONOTONIC
        event = TrackEvent(type=kind, track_uuid=track, **({"name": name} if name else {}), **more)
        for key, value in (about or {}).items():
            form = {int: "int_value", str: "string_value"}.get(type(value))
            told = {form: value} if form else {"legacy_json_value": json.dumps(value)}
            event.debug_annotations.add(name=key, **told)
        packet.track_event.CopyFrom(event)
        self._builder.write_packet(packet)

    def _packet(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet


@dataclass
class _Nest:
    """One track: the ends of the slices that are open on it, the innermost last."""

    track: int
    ends: list[int] = field(default_factory=list)

    def takes(self, end: int) -> bool:
        """Whether a slice with this end lies within those that are open."""
        return not self.ends or end <= self.ends[-1]


class _Slices:
    """Writes spans as slices, each within the one around it."""

    def __init__(self, recording: Recording, packets: _Packets) -> None:
        self._spans, self._packets = recording.spans, packets
        self._cycles, self._ties = list(told_cycles(recording)), launches(recording)

    def write(self, rows: Ints, **place: Any) -> None:
        """Write these spans, all of one clock, onto a track at `place`, or onto several where they overlap."""
        spans, nests = self._spans, [_Nest(self._packets.track(**place))]
        rows = rows[np.lexsort((spans.name[rows], -spans.end[rows], spans.start[rows]))]
        ends, starts = spans.end[rows].tolist(), spans.start[rows].tolist()
        for row, start, end in zip(rows.tolist(), starts, ends, strict=True):
            for nest in nests:
                self._close(nest, start)
            fitting = next((nest for nest in nests if nest.takes(end)), None)
            if fitting is None:
                nests.append(fitting := _Nest(self._packets.track(**place)))
            self._open(row, fitting.track, start)
            fitting.ends.append(end)
        for nest in nests:
            self._close(nest, None)

    def _open(self, row: int, track: int, start: int) -> None:
        name, on = SPAN_NAMES[self._spans.name[row]], Track(self._spans.track[row])
        cycle, tie = int(self._spans.cycle[row]), int(self._ties[row])
        about = self._cycles[cycle] if name == "cycle" and on == Track.HOST else {"cycle": cycle}
        category = "wait" if name in WAITS else on.name.lower()
        flow = {"flow_ids": [tie]} if tie else {}
        self._packets.event(TrackEvent.TYPE_SLICE_BEGIN, track, start, name, about=about, categories=[category], **flow)

    def _close(self, nest: _Nest, upto: int | None) -> None:
        """Close the slices that have ended by then, all for None."""
        while nest.ends and (upto is None or nest.ends[-1] <= upto):
            self._packets.event(TrackEvent.TYPE_SLICE_END, nest.track, nest.ends.pop())
