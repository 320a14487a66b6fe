"""Join the raw rows and facts of a server's processes into cycles: by the step id, never by order.

The engine numbers each step that it schedules, the number travels with the scheduler's output, and a worker
notes it when it is handed the step, and whether it recorded the step in detail. A row of the engine's process belongs
to the turn of its loop in which it starts; a row of a worker process belongs to the step that the worker was last
handed: so a step has the rows of all ranks. The process of an engine without a worker in it has all its hooks in force
all the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spantrace.clock_offset import clock_offset
from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.graph_rows import with_parts
from spantrace.naming import Flags, Ints, NamedRows, Process, name_rows
from spantrace.recording import Cycles, Header, Recording, Spans
from spantrace.spans import SPAN_ID, GraphMode, Kind, Track
from spantrace.windows import touched

EMIT = SPAN_ID["output.emit"]
FORWARD = SPAN_ID["target.forward"]


def join(header: Header, frames: Iterable[Frame], partial: bool) -> Recording:
    """A Recording from a journal's frames; SpantraceError where they hold no cycle, ValueError where damaged."""
    by_process: dict[int, list[Frame]] = {}
    for frame in frames:
        by_process.setdefault(frame.get("process", -1), []).append(frame)
    processes = [
        Process.from_frames(about, by_process.get(index, [])) for index, about in enumerate(header["processes"])
    ]
    named = [name_rows(process) for process in processes]
    engine = next((i for i, rows in enumerate(named) if (rows.name == SPAN_ID["cycle"]).any()), None)
    if engine is None:
        built_in = "engine" in header.get("server", {})
        advice = "let it run for longer" if built_in else "put load on the server while it records"
        raise SpantraceError(f"the recording holds no cycle; {advice}")
    workers = [i for i, process in enumerate(processes) if process.facts.get("execute")]
    cycles, number_of_turn, left_out = _cycles(header, processes, engine, workers, named[engine])
    for rank, worker in enumerate(workers):
        if header["processes"][worker].get("rank") is None:
            header["processes"][worker]["rank"] = rank
    header["left_out"] = left_out
    others = [worker for worker in workers if worker != engine]
    spans = _spans(header, processes, named, engine, others, cycles, number_of_turn)
    return Recording(header, cycles, spans, partial)


def _cycles(
    header: Header, processes: list[Process], engine: int, workers: list[int], rows: NamedRows
) -> tuple[Cycles, Ints, dict[str, int]]:
    """The complete cycles, the cycle number of each turn (-1 where dropped), and what was left out."""
    turns = rows.name == SPAN_ID["cycle"]
    start, end = rows.start[turns], rows.end[turns]
    count = len(start)
    plan = np.full((count, 6), -1, dtype=np.int64)
    scheduled = processes[engine].table("schedule", 7)
    turn = np.searchsorted(start, scheduled[:, 1], side="right") - 1
    real = (turn >= 0) & (scheduled[:, 1] <= end[np.maximum(turn, 0)])
    plan[turn[real]] = scheduled[real][:, [0, 2, 3, 4, 5, 6]]
    step, no_step = plan[:, 0], plan[:, 0] < 0
    updates = {fact[0]: fact for fact in processes[engine].facts.get("update", [])}
    complete = no_step | np.isin(step, np.fromiter(updates, np.int64, len(updates)))
    for worker in workers:
        complete &= no_step | np.isin(step, processes[worker].table("execute", 2)[:, 0])
    if not header["processes"][engine].get("stopped", True):
        # A process sends its rows before its facts: what the last turns were may have been lost with the end.
        complete &= ~no_step | (start < scheduled[:, 1].max(initial=0))
    idle = processes[engine].table("idle", 2)
    idle_before = np.zeros(count, dtype=bool)
    follower = np.searchsorted(start, idle[:, 1], side="left")
    idle_before[follower[follower < count]] = True
    period = np.full(count, -1, dtype=np.int64)
    period[:-1] = np.where(idle_before[1:], -1, np.diff(start))
    speculates = int(header.get("server", {}).get("num_speculative_tokens") or 0)
    live, drafting, drafted, accepted = _acceptance(step, updates, speculates)
    kind = _kinds(header, plan, live, idle_before, touched(header, start, end))
    cycles = Cycles(
        step=step,
        start=start,
        end=end,
        period=period,
        batch=np.maximum(plan[:, 2], 0).astype(np.int32),
        scheduled_tokens=np.maximum(plan[:, 1], 0).astype(np.int32),
        drafting=drafting,
        drafted=drafted,
        accepted=accepted,
        graph_mode=_graph_modes(step, [processes[worker] for worker in workers[:1]]),
        kind=kind,
        detail=_detail(step, [processes[worker] for worker in workers]),
    )
    number = np.where(complete, np.cumsum(complete) - 1, -1)
    kept = Cycles(**{name: column[complete] for name, column in vars(cycles).items()})
    return kept, number, {"partial": int((~complete).sum())}


def _acceptance(
    step: Ints, updates: dict[int, list[Any]], speculates: int
) -> tuple[Ints, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Per step: live requests, drafting requests, and requests that drafted and accepted each position."""
    longest = max((n for fact in updates.values() for n in fact[3][::2]), default=0)
    width = max(speculates, longest)
    live = np.zeros(len(step), dtype=np.int64)
    drafting = np.zeros(len(step), dtype=np.int32)
    drafted = np.zeros((len(step), width), dtype=np.int32)
    accepted = np.zeros((len(step), width), dtype=np.int32)
    for index, number in enumerate(step.tolist()):
        if (fact := updates.get(number)) is None:
            continue
        live[index] = fact[2]
        drafting[index] = len(fact[3]) // 2
        for proposed, right in zip(fact[3][::2], fact[3][1::2], strict=True):
            drafted[index, :proposed] += 1
            accepted[index, :right] += 1
    return live, drafting, drafted, accepted


def _kinds(header: Header, plan: Ints, live: Ints, idle_before: Flags, delayed: Flags) -> NDArray[np.int8]:
    """Each cycle's kind; a drafter that by its nature has not always a proposal needs one for one request only."""
    server = header.get("server", {})
    tokens, batch, prefilling, with_drafts, skipping = plan[:, 1:].T
    kind = np.full(len(plan), Kind.STEADY, dtype=np.int8)
    if server.get("num_speculative_tokens"):
        wanted = batch if server.get("always_drafts", True) else 1
        kind[(with_drafts < wanted) | (skipping > 0)] = Kind.DRAFT_SKIPPED
    kind[idle_before] = Kind.AFTER_IDLE
    kind[live == 0] = Kind.GHOST
    kind[prefilling > 0] = np.where(batch > prefilling, Kind.MIXED, Kind.PREFILL)[prefilling > 0]
    kind[tokens <= 0] = Kind.EMPTY
    steady = np.flatnonzero(kind == Kind.STEADY)
    kind[steady[: int(header["options"].get("warmup", 0))]] = Kind.WARMUP
    return np.where((kind == Kind.STEADY) & delayed, np.int8(Kind.DELAYED), kind)


def _graph_modes(step: Ints, workers: list[Process]) -> NDArray[np.int8]:
    """The kind of graph of each step's target pass: the first that its worker launched, the drafter's come later."""
    modes = np.full(len(step), GraphMode.UNKNOWN, dtype=np.int8)
    for worker in workers:
        handed, graphs = worker.table("execute", 2), worker.graphs()
        at = np.searchsorted(handed[:, 1], graphs[:, 0], side="right") - 1
        in_order = reversed(list(zip(at.tolist(), graphs[:, 1].tolist(), strict=True)))
        mode_of_step = {int(handed[i, 0]): mode for i, mode in in_order if i >= 0}
        modes[:] = [mode_of_step.get(number, GraphMode.UNKNOWN) for number in step.tolist()]
    return modes


def _detail(step: Ints, workers: list[Process]) -> Flags:
    """Which turns every worker had in detail, as the turns before and after; one without a step as the one before."""
    told: dict[int, bool] = {}
    for worker in workers:
        for number, on in worker.detail().items():
            told[number] = told.get(number, True) and on
    found, last = np.ones(len(step), dtype=bool), True
    for index, number in enumerate(step.tolist()):
        found[index] = last = told.get(number, last)
    padded: Flags = np.pad(found, 1, constant_values=True)
    return found & padded[:-2] & padded[2:]


def _spans(
    header: Header,
    processes: list[Process],
    named: list[NamedRows],
    engine: int,
    workers: list[int],
    cycles: Cycles,
    number_of_turn: Ints,
) -> Spans:
    turns = named[engine].name == SPAN_ID["cycle"]
    turn_start, turn_end = named[engine].start[turns], named[engine].end[turns]
    lanes: list[dict[str, Any]] = []
    parts: list[dict[str, Ints]] = []
    for index in [engine, *workers]:
        rows = named[index]
        if index == engine:
            turn = np.searchsorted(turn_start, rows.start, side="right") - 1
            at_work = (turn >= 0) & ((rows.start <= turn_end[np.maximum(turn, 0)]) | (rows.name == EMIT))
            cycle = np.where(at_work, number_of_turn[np.maximum(turn, 0)], -1)
        else:
            cycle = _cycle_of_worker_rows(processes[index], rows.start, cycles.step)
        threads = processes[index].about.get("threads", {})
        for lane in np.unique(rows.lane).tolist():
            here = rows.lane == lane
            parts.append(_part(rows.name[here], Track.HOST, len(lanes), cycle[here], rows.start[here], rows.end[here]))
            lanes.append(
                {"process": index, "thread": threads.get(str(lane), "main" if lane == 0 else f"thread {lane}")}
            )
        if len(processes[index].gpu):
            parts.append(_gpu_part(processes[index], rows, cycle, len(lanes)))
            lanes.append({"process": index, "thread": "GPU stream"})
    header["lanes"] = lanes
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    kept = columns["cycle"] >= 0
    order = np.argsort(columns["start"][kept], kind="stable")
    columns = {name: column[kept][order] for name, column in columns.items()}
    return Spans(
        name=columns["name"].astype(np.int16),
        track=columns["track"].astype(np.int8),
        lane=columns["lane"].astype(np.int16),
        cycle=columns["cycle"],
        start=columns["start"],
        end=columns["end"],
    )


def _part(name: Ints, track: Track, lane: int, cycle: Ints, start: Ints, end: Ints) -> dict[str, Ints]:
    size = len(name)
    return {
        "name": name,
        "track": np.full(size, track, dtype=np.int64),
        "lane": np.full(size, lane, dtype=np.int64),
        "cycle": cycle,
        "start": start,
        "end": end,
    }


def _cycle_of_worker_rows(worker: Process, start: Ints, steps: Ints) -> Ints:
    handed = worker.table("execute", 2)
    last = np.searchsorted(handed[:, 1], start, side="right") - 1
    step = np.where(last >= 0, handed[np.maximum(last, 0), 0], -2)
    real = np.flatnonzero(steps >= 0)
    at = np.minimum(np.searchsorted(steps[real], step), max(len(real) - 1, 0))
    return np.where(steps[real][at] == step, real[at], -1) if len(real) else np.full(len(start), -1)


def _gpu_part(process: Process, rows: NamedRows, cycle: Ints, lane: int) -> dict[str, Ints]:
    """GPU spans on the host's clock, each with the name and the cycle of the host row that opened it, and parts."""
    gpu = process.gpu
    order = np.argsort(rows.opened, kind="stable")
    at = order[np.minimum(np.searchsorted(rows.opened[order], gpu[:, 1]), len(order) - 1)] if len(order) else gpu[:0, 0]
    gpu = gpu[: len(gpu) if len(order) else 0]
    kept = rows.opened[at] == gpu[:, 1]
    gpu, at = gpu[kept], at[kept]
    offset = clock_offset(gpu)
    whole = _part(rows.name[at], Track.GPU, lane, cycle[at], gpu[:, 3] + offset, gpu[:, 4] + offset)
    return with_parts(whole, gpu, process.parts)
