"""What exporters share: the processes of a recording and their lanes, its cycles, and who launched which GPU span."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from spantrace.naming import Ints
from spantrace.recording import Header, Recording
from spantrace.shareable import shareable_header
from spantrace.spans import SPAN_NAMES, GraphMode, Kind, Track


@dataclass(frozen=True)
class Process:
    """One process and its rank, if it is a worker's; its id is its number, from 1, where it is not known."""

    pid: int
    role: str
    rank: int | None = None


@dataclass(frozen=True)
class Lane:
    """One thread or stream of the process with that number; `gpu` says which part of the GPU's work it is, if one."""

    process: int
    thread: str
    gpu: str | None


def processes_of(recording: Recording) -> list[Process]:
    """The processes, at least one."""
    known = recording.header.get("processes") or [{}]
    return [
        Process(int(one.get("pid") or at), str(one.get("role") or "process"), one.get("rank"))
        for at, one in enumerate(known, 1)
    ]


def lanes_of(recording: Recording) -> list[Lane]:
    """A lane for every number that a span's lane has."""
    last = len(processes_of(recording)) - 1
    known = recording.header.get("lanes") or [{"process": 0}]
    lanes = [Lane(min(int(one["process"]), last), str(one.get("thread") or "main"), one.get("gpu")) for one in known]
    missing = int(recording.spans.lane.max(initial=0)) + 1 - len(lanes)
    return lanes + [Lane(0, "unknown", None)] * missing


def told_header(recording: Recording) -> Header:
    """What of the header may leave the machine, with what else an importer needs to know of the recording."""
    untold = {"untold": len(recording.header.get("notes") or [])}
    return shareable_header({**recording.header, **untold, "partial": recording.partial})


def told_cycles(recording: Recording) -> Iterator[dict[str, Any]]:
    """Of each cycle all that the recording knows but its times."""
    cycles = recording.cycles
    for index in range(len(cycles)):
        yield {
            "cycle": index,
            "step": int(cycles.step[index]),
            "period_ns": int(cycles.period[index]),
            "batch": int(cycles.batch[index]),
            "scheduled_tokens": int(cycles.scheduled_tokens[index]),
            "drafting": int(cycles.drafting[index]),
            "drafted": cycles.drafted[index].tolist(),
            "accepted": cycles.accepted[index].tolist(),
            "graph_mode": GraphMode(cycles.graph_mode[index]).name,
            "kind": Kind(cycles.kind[index]).name,
            "detail": int(cycles.detail[index]),
        }


def launches(recording: Recording) -> Ints:
    """For each span its tie: a GPU span has that of the host span that launched it, of its name, cycle and process.

    The k-th such GPU span is tied to the k-th host span, or to the last where there are fewer; 0 is no tie.
    """
    spans, ties = recording.spans, np.zeros(len(recording.spans.name), dtype=np.int64)
    process = np.array([lane.process for lane in lanes_of(recording)], dtype=np.int64)[spans.lane]
    key = (process * len(recording.cycles) + spans.cycle) * len(SPAN_NAMES) + spans.name
    host, gpu = (np.flatnonzero(spans.track == track) for track in (Track.HOST, Track.GPU))
    host, gpu = (rows[np.argsort(key[rows], kind="stable")] for rows in (host, gpu))
    first, behind = (np.searchsorted(key[host], key[gpu], side=side) for side in ("left", "right"))
    place = np.arange(len(gpu)) - np.searchsorted(key[gpu], key[gpu], side="left")
    tied = behind > first
    launchers = host[np.minimum(first + place, behind - 1)[tied]]
    ties[gpu[tied]] = launchers + 1
    ties[launchers] = launchers + 1
    return ties
