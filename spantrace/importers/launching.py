"""Which kernels are of which process, and which call launched each: correlation ids count within one process only."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from spantrace.importers.annotations import launches_graph
from spantrace.importers.trace import Events, Trace
from spantrace.naming import Flags, Ints

_RANK = re.compile(r"\[[^\]]*\] ")
"""What a tool that merges the traces of several ranks puts before each process id."""


@dataclass(frozen=True)
class Launched:
    """One process's calls, and the GPU's kernels and copies that are its; `by` is the place of a call or -1, [n]."""

    calls: Events
    in_graph: Flags
    kernels: Events
    kernels_by: Ints
    copies: Events
    copies_by: Ints


def launched(trace: Trace, process: int) -> Launched:
    """The calls and the GPU work of one process."""
    calls = trace.calls.only(trace.calls.process == process)
    devices = _devices(trace, process)
    kernels, copies = (part.only(np.isin(part.process, devices)) for part in (trace.kernels, trace.copies))
    graph = trace.named(calls, launches_graph)
    return Launched(calls, graph, kernels, _callers(calls, kernels), copies, _callers(calls, copies))


def _devices(trace: Trace, process: int) -> Ints:
    """The GPUs (as process labels of GPU events) on which the process works.

    With several processes in one trace a GPU is of the one that launched most of what it ran: by correlation, and
    never later than the kernel ran.
    """
    if trace.owned:
        return np.array([process])
    rank = _rank(trace.labels[process])
    devices = np.unique(np.concatenate([trace.kernels.process, trace.copies.process]))
    devices = np.array([one for one in devices if _rank(trace.labels[one]) == rank], dtype=np.int64)
    rivals = [one for one in np.unique(trace.calls.process) if _rank(trace.labels[one]) == rank]
    if len(rivals) < 2 or process not in rivals:
        return devices
    calls = {one: trace.calls.only(trace.calls.process == one) for one in rivals}
    owners = [max(rivals, key=lambda one: _fit(trace, device, calls[one])) for device in devices.tolist()]
    return devices[np.array(owners, dtype=np.int64) == process] if owners else devices


def _fit(trace: Trace, device: int, calls: Events) -> int:
    kernels = trace.kernels.only(trace.kernels.process == device)
    by = _callers(calls, kernels)
    return int(((by >= 0) & (kernels.start >= calls.start[np.maximum(by, 0)])).sum()) if len(calls) else 0


def _rank(label: object) -> str:
    found = _RANK.match(str(label))
    return found[0] if found else ""


def _callers(calls: Events, work: Events) -> Ints:
    """The place in `calls` of the call with each event's correlation id, -1 where there is none."""
    known = np.flatnonzero(calls.correlation > 0)
    if not len(known) or not len(work):
        return np.full(len(work), -1, dtype=np.int64)
    known = known[np.argsort(calls.correlation[known], kind="stable")]
    ids = calls.correlation[known]
    at = np.minimum(np.searchsorted(ids, work.correlation), len(ids) - 1)
    return np.where(ids[at] == work.correlation, known[at], -1)
