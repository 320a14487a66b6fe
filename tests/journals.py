"""A server's processes played by hand: the frames that an engine and a worker send, written turn by turn."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from spantrace.frames import Frame, pack_rows
from spantrace.header import complete_header
from spantrace.joining import join
from spantrace.journal import Journal
from spantrace.recorder import Recorder
from spantrace.recording import Recording
from spantrace.ring import as_array
from spantrace.spans import GraphMode
from spantrace.wrapping import LANE_SHIFT

Site = tuple[str, str | None]
ENGINE, WORKER = 10, 11
"""The pids of the two processes of `sync_server`."""


class Played:
    """One process: rows are (span, start, end) with the site made up on the way, facts as the probes note them."""

    def __init__(self, role: str, pid: int = 1) -> None:
        self.about: Frame = {"pid": pid, "role": role, "missing": []}
        self.sites: list[Site] = []
        self.rows: list[tuple[int, int, int]] = []
        self.gpu: list[tuple[int, int, int, int, int]] = []
        self.facts: list[tuple[Any, ...]] = []
        self.threads: dict[str, str] = {}
        self.graphs: dict[str, int] = {}
        self.counted: list[Frame] = []

    def row(self, span: str, start: int, end: int, *, in_draft: str | None = None, lane: int = 0) -> Played:
        """A call of a function that is recorded as `span`."""
        self.rows.append((self.site(span, in_draft) + (lane << LANE_SHIFT), start, end))
        return self

    def site(self, span: str, in_draft: str | None = None) -> int:
        """The number of the site of `span`."""
        if (span, in_draft) not in self.sites:
            self.sites.append((span, in_draft))
        return self.sites.index((span, in_draft))

    def timed(self, span: str, host_start: int, host_end: int, start: int, end: int) -> Played:
        """A GPU span, on the GPU's clock, of the row of `span` with these host times."""
        self.gpu.append((self.site(span), host_start, host_end, start, end))
        return self

    def schedule(
        self, step: int, at: int, *, tokens: int = 3, batch: int = 1, prefill: int = 0, drafts: int = 1, skip: int = 0
    ) -> Played:
        """The scheduler numbered a step."""
        self.facts.append(("schedule", step, at, tokens, batch, prefill, drafts, skip))
        return self

    def update(self, step: int, at: int, *pairs: int, live: int = 1) -> Played:
        """The step's result was taken in: drafted and accepted tokens of each drafting request."""
        self.facts.append(("update", step, at, live, list(pairs)))
        return self

    def execute(self, step: int, at: int, graph: GraphMode | None = None, *, detail: bool | None = None) -> Played:
        """The worker was handed the step, in detail or not where it says so, and 1 ns later chose a graph for it."""
        self.facts.append(("execute", step, at, *([] if detail is None else [int(detail)])))
        if graph is not None:
            self.facts.append(("graph", at + 1, int(graph)))
        return self

    def idle(self, start: int, end: int) -> Played:
        """The engine waited for requests."""
        self.facts.append(("idle", start, end))
        return self

    def frames(self) -> list[Frame]:
        """What the process sends from its start to its stop."""
        health = {"lost": 0, "hook_errors": 0, "first_error": "", "threads": self.threads}
        sites = {"sites": self.sites, "graphs": self.graphs, "optimizations": self.counted}
        return [
            {"type": "armed", "about": self.about, "calibration": {"host_span_ns": 200.0}},
            {"type": "rows", **pack_rows(np.array(self.rows, dtype=np.int64).reshape(-1, 3))},
            {"type": "facts", "facts": self.facts},
            *([{"type": "gpu", **pack_rows(np.array(self.gpu, dtype=np.int64))}] if self.gpu else []),
            {"type": "health", "health": health, **sites},
            {"type": "stopped", "health": health, **sites},
        ]


def header(drafts: int = 2, warmup: int = 0) -> dict[str, Any]:
    """What the recording's client knows of the server."""
    return {"server": {"num_speculative_tokens": drafts}, "options": {"warmup": warmup}, "notes": []}


def frames_of(*processes: Played) -> list[Frame]:
    """The frames of all processes, taken in turn, each with the number of its process."""
    lines = [[{**frame, "process": index} for frame in one.frames()] for index, one in enumerate(processes)]
    return [frame for turn in itertools.zip_longest(*lines) for frame in turn if frame is not None]


def joined(*processes: Played, drafts: int = 2, warmup: int = 0) -> Recording:
    """The recording of these processes."""
    frames = frames_of(*processes)
    return join(complete_header(header(drafts, warmup), frames), frames, partial=False)


def write_journal(path: Path, *processes: Played, end: bool = True) -> Path:
    """The same as the journal of a recording under way at `path`; returns the journal's own path."""
    with Journal(path, header(), force=True) as journal:
        for frame in frames_of(*processes):
            journal.write(frame)
        if end:
            journal.write({"type": "end"})
    return journal.part


def sync_server(turns: int = 3) -> tuple[Played, Played]:
    """An engine and a worker of its own that decode `turns` cycles of 1000 ns, each verified in its own turn."""
    engine, worker = Played("engine", ENGINE), Played("worker", WORKER)
    for step in range(1, turns + 1):
        at = 1000 * step
        engine.row("cycle", at, at + 900).row("schedule", at + 10, at + 60).schedule(step, at + 12)
        engine.row("output.wait", at + 100, at + 700).row("output.update", at + 750, at + 800)
        engine.update(step, at + 750, 2, 1)
        worker.execute(step, at + 120, GraphMode.FULL)
        worker.row("target.forward", at + 150, at + 250).row("sample", at + 300, at + 400)
        worker.row("draft.propose", at + 450, at + 650)
    return engine, worker


def rows_of(recorder: Recorder) -> list[list[int]]:
    """Take out a recorder's rows so far: site and lane, start and end."""
    rows: list[list[int]] = as_array(recorder.rows.drain()).tolist()
    return rows
