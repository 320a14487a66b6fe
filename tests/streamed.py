"""A server that decodes for seconds, its frames in the order and at the times in which a recorder gets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from journals import ENGINE, WORKER, Played, header

from spantrace.frames import Frame, pack_rows
from spantrace.header import complete_header
from spantrace.joining import join
from spantrace.recording import Recording
from spantrace.ring import as_array
from spantrace.spans import SPAN_ID, SPAN_NAMES, GraphMode, Track

MS, S = 10**6, 10**9
CYCLE, DRAIN = 20 * MS, S // 2
GPU_CLOCK = -7 * S
"""What the GPU's clock shows at the host's 0."""
Found = tuple[int, str, int, int, int, int]


class Server:
    """An engine and `ranks` workers that decode `turns` cycles from `begin` on; GPU times are read `late` ns later.

    The graph of target.forward has a marked part.
    """

    def __init__(
        self, turns: int, *, ranks: int = 1, late: int | None = 8 * S, warmup: int = 3, begin: int = 100 * S
    ) -> None:
        self.header = {**header(warmup=warmup), "monotonic_to_realtime_ns": 1_700_000_000 * S}
        self._begin = begin
        self._late, self._timed = late or 0, late is not None
        self.engine = Played("EngineCore", ENGINE)
        self.workers = [Played("Worker", WORKER + 10 * rank) for rank in range(ranks)]
        self._parts: list[list[tuple[int, ...]]] = [[] for _ in self.workers]
        self._sent: list[tuple[int, Frame]] = []
        for step in range(1, turns + 1):
            at = begin + CYCLE * step + (2 * S if step > turns // 2 else 0)
            if step == turns // 2 + 1:
                self.engine.idle(at - 2 * S, at - MS)
            self._turn(step, at)

    def _turn(self, step: int, at: int) -> None:
        self.engine.row("cycle", at, at + 18 * MS).row("schedule", at + 1000, at + MS).schedule(step, at + 2000)
        self.engine.row("output.wait", at + 2 * MS, at + 15 * MS).row("output.update", at + 16 * MS, at + 17 * MS)
        self.engine.update(step, at + 16 * MS, 2, 1)
        for rank, worker in enumerate(self.workers):
            here = at + rank * 1000
            worker.execute(step, here + 3 * MS, GraphMode.FULL)
            for name, begin, end in (("target.forward", 4, 5), ("sample", 6, 8), ("draft.propose", 9, 12)):
                worker.row(name, here + begin * MS, here + end * MS)
                if self._timed and name != "draft.propose":
                    first, last = here + begin * MS, here + end * MS
                    worker.timed(name, first, last, first + GPU_CLOCK, last + GPU_CLOCK)
                    if name == "target.forward":
                        self._parts[rank].append((SPAN_ID["target.forward.logits"], first + 7, 500, 900))

    def frames(self) -> Iterator[tuple[int, Frame]]:
        """Each frame with the time at which it comes."""
        self._sent = self._sent or list(self._sending())
        for now, frame in self._sent:
            yield now, {**frame}

    def _sending(self) -> Iterator[tuple[int, Frame]]:
        processes = [*self.workers, self.engine]
        for index, one in enumerate(processes):
            first, *_ = one.frames()
            calibration = {"host_span_ns": 200.0, "gpu_event_ns": 1000.0 if self._timed else None}
            yield 0, {**first, "calibration": calibration, "process": index}
        ended = max(end for _, _, end in self.engine.rows)
        for now in range(self._begin, ended + self._late + 2 * DRAIN, DRAIN):
            for index, one in enumerate(processes):
                parts = self._parts[index] if index < len(self._parts) else []
                for frame in (*_drained(one, parts, now, self._late), one.frames()[-2]):
                    yield now, {**frame, "process": index}
        for index, one in enumerate(processes):
            yield ended + self._late + DRAIN, {**one.frames()[-1], "process": index}

    def joined(self) -> Recording:
        """The recording that all of it makes at once."""
        frames = [frame for _, frame in self.frames()]
        return join(complete_header(self.header, frames), frames, partial=False)


def _drained(one: Played, parts: list[tuple[int, ...]], now: int, late: int) -> Iterator[Frame]:
    """What a process sends at this time: what ended since it last did, parts of graphs before their GPU rows."""
    replayed = [part for part in parts if now - DRAIN <= part[1] < now]
    if replayed:
        yield {"type": "parts", **pack_rows(as_array([value for part in replayed for value in part], 4))}
    rows = [row for row in one.rows if now - DRAIN <= row[2] < now]
    facts = [fact for fact in one.facts if now - DRAIN <= _time(fact) < now]
    gpu = [row for row in one.gpu if now - DRAIN <= row[2] + late < now]
    if rows:
        yield {"type": "rows", **pack_rows(as_array([value for row in rows for value in row]))}
    if facts:
        yield {"type": "facts", "facts": facts}
    if gpu:
        yield {"type": "gpu", **pack_rows(as_array([value for row in gpu for value in row], 5))}


def _time(fact: tuple[Any, ...]) -> int:
    return int(fact[1] if fact[0] == "graph" else fact[2])


def spans_in(recording: Recording, *tracks: Track) -> list[Found]:
    """Step, name, track, process, begin and end of each span on these tracks, or on all."""
    spans, lanes = recording.spans, recording.header["lanes"]
    columns = (recording.cycles.step[spans.cycle], spans.name, spans.track, spans.lane, spans.start, spans.end)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return sorted(
        (step, SPAN_NAMES[name], track, int(lanes[lane]["process"]), start, end)
        for step, name, track, lane, start, end in rows
        if not tracks or track in tracks
    )
