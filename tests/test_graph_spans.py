"""Parts of CUDA graphs: marks in a capture, replays with marks, rows, joining, and what the report says of them."""

from __future__ import annotations

import numpy as np
import pytest
from journals import Played, frames_of, header
from recordings import NEMOTRON_GPU, make_recording
from test_gpu_clock import Device, Event, read_all

from analyzers.graph_parts import GraphParts, graph_parts
from analyzers.span_table import span_table
from spantrace.cli.graph_wording import graph_facts
from spantrace.frames import Frame, pack_rows, unpack_rows
from spantrace.gpu_clock import GpuClock
from spantrace.graph_spans import EVERY, MOST_PARTS, WIDTH, GraphTimes, MarkedGraph, MarkedReplay, Marks
from spantrace.header import complete_header
from spantrace.joining import join
from spantrace.patching import EntryPatch, PatchSet
from spantrace.recorder import Recorder, Site
from spantrace.recording import Recording, Spans
from spantrace.spans import GRAPH_PARTS, PARENT, SPAN_ID, SPAN_NAMES, TREE, Track

EMPTY_NS = 2_000.0
LAUNCH_NS = 5_000
PARTS = ("draft.forward.layers", "draft.forward.logits", "draft.forward.sampling")
PART_NS = (400_000, 200_000, 50_000)
STEP_NS = 10_000_000


class MarkEvent(Event):
    """An event whose time a replay sets."""

    recorded = 0

    def record(self, stream: object = None) -> None:
        self.recorded += 1


class Launched:
    """A graph that takes `PART_NS`, and passes its marks if it has any; it ends `lag_ms` after it is launched."""

    def __init__(self, device: Device, events: tuple[MarkEvent, ...] = ()) -> None:
        self.device, self.events, self.replays = device, events, 0

    def replay(self) -> None:
        self.replays += 1
        at = self.device.now_ns / 1e6 + self.device.lag_ms
        for event, length in zip(self.events, (0, *PART_NS), strict=False):
            at += length / 1e6
            event.at_ms = at


class Worker:
    """One process with a graph that has a twin, recorded as a worker records its drafter."""

    def __init__(self, lag_ms: float = 0.5) -> None:
        self.device = Device()
        self.device.lag_ms = lag_ms
        self.clock = GpuClock([Event(self.device) for _ in range(257)], self.device.stream)
        self.clock.graphs = GraphTimes(self.clock, EMPTY_NS)
        events = tuple(MarkEvent(self.device) for _ in range(len(PARTS) + 1))
        self.graph = MarkedGraph(Launched(self.device), Launched(self.device, events), PARTS, events)
        self.entries: dict[str, object] = {"one": self.graph.plain}

    def patched(self) -> PatchSet:
        patches = PatchSet()
        assert self.clock.graphs is not None
        patches.add(EntryPatch(self.entries, "one", self.graph.plain, MarkedReplay(self.graph, self.clock.graphs)))
        return patches

    def cycle(self, timed: bool = True) -> None:
        self.clock.new_cycle(timed)
        opened = self.clock.open() if self.clock.timing else -1
        start = self.device.now_ns
        self.entries["one"].replay()  # type: ignore[attr-defined]
        self.device.now_ns += 100_000
        if self.clock.timing:
            self.clock.close(7, start, self.device.now_ns, opened)
        self.device.now_ns += STEP_NS

    def rows(self) -> list[tuple[int, ...]]:
        assert self.clock.graphs is not None
        return [tuple(row) for row in np.reshape(self.clock.graphs.drain(), (-1, WIDTH)).astype(int).tolist()]

    def replays(self) -> tuple[int, int]:
        return self.graph.plain.replays, self.graph.marked.replays  # type: ignore[attr-defined]


def test_every_name_of_a_part_is_known_and_lies_in_a_forward_pass() -> None:
    assert {PARENT[name] for name in GRAPH_PARTS} == {"target.forward", "draft.forward"}
    assert len(GRAPH_PARTS) <= MOST_PARTS
    assert sorted(TREE) == sorted(SPAN_NAMES)
    for name in GRAPH_PARTS:
        above = TREE.index(str(PARENT[name]))
        assert all(PARENT[other] == PARENT[name] for other in TREE[above + 1 : TREE.index(name)])


def test_marks_are_named_in_order_and_once() -> None:
    events = tuple(MarkEvent(Device()) for _ in range(MOST_PARTS + 1))
    marks = Marks(events)
    marks.end("draft.forward.layers")
    assert marks.parts == []
    marks.begin()
    for name in (*PARTS[:2], PARTS[1], PARTS[2]):
        marks.end(name)
    assert tuple(marks.parts) == PARTS
    assert [event.recorded for event in events] == [1] * 4 + [0] * (MOST_PARTS - 3)


def test_a_part_whose_beginning_is_not_marked_has_no_name() -> None:
    marks = Marks(tuple(MarkEvent(Device()) for _ in range(8)))
    marks.begin()
    for name in ("target.forward.embedding", "target.forward.middle_layers", "target.forward.last_layers"):
        marks.end(name)
    assert marks.parts == ["target.forward.embedding", "", ""]


def test_there_are_never_more_marks_than_events() -> None:
    marks = Marks(tuple(MarkEvent(Device()) for _ in range(3)))
    marks.begin()
    for number in range(5):
        marks.end(f"part {number}")
    assert marks.parts == ["part 0", "part 1"]


def test_one_timed_cycle_in_some_has_marks_which_are_read_in_a_later_one() -> None:
    worker = Worker()
    worker.patched().install()
    for _ in range(2 * EVERY):
        worker.cycle()
    assert worker.replays() == (2 * EVERY - 2, 2)
    assert len(worker.rows()) == len(PARTS), "the last replay is read when the next cycle begins"
    worker.cycle()
    (_, _, first, end), *rest = worker.rows()
    assert (first, end) == (0, PART_NS[0] - EMPTY_NS)
    assert [(SPAN_NAMES[name], stop - begin) for name, _, begin, stop in rest] == [
        (name, length - EMPTY_NS) for name, length in zip(PARTS[1:], PART_NS[1:], strict=True)
    ]
    assert rest[0][2] == PART_NS[0]
    assert len(read_all(worker.clock)) == 2 * EVERY + 1
    assert worker.clock.errors == 0


def test_a_cycle_that_is_not_timed_has_no_marks() -> None:
    worker = Worker()
    worker.patched().install()
    for _ in range(4 * EVERY):
        worker.cycle(timed=False)
    assert worker.replays() == (4 * EVERY, 0)


def test_marks_that_have_not_passed_are_not_read_and_not_recorded_anew() -> None:
    worker = Worker(lag_ms=1e6)
    worker.patched().install()
    for _ in range(4 * EVERY):
        worker.cycle()
    assert worker.replays() == (4 * EVERY - 1, 1)
    assert worker.rows() == []


def test_times_of_an_earlier_replay_are_not_taken_for_those_of_the_last() -> None:
    worker = Worker()
    worker.patched().install()
    for _ in range(EVERY + 1):
        worker.cycle()
    assert len(worker.rows()) == len(PARTS)
    earlier = [event.at_ms for event in worker.graph.events]  # type: ignore[attr-defined]
    for _ in range(EVERY - 1):
        worker.cycle()
    assert worker.replays()[1] == 2
    times = [event.at_ms for event in worker.graph.events]  # type: ignore[attr-defined]
    for event, at in zip(worker.graph.events, earlier, strict=True):
        event.at_ms = at  # type: ignore[attr-defined]
    worker.cycle()
    assert worker.rows() == []
    for event, at in zip(worker.graph.events, times, strict=True):
        event.at_ms = at  # type: ignore[attr-defined]
    worker.cycle()
    assert len(worker.rows()) == len(PARTS)
    assert worker.clock.errors == 0


def test_without_a_recording_the_graphs_are_vllms_own() -> None:
    worker = Worker()
    patches = worker.patched()
    assert worker.entries["one"] is worker.graph.plain
    patches.install()
    assert worker.entries["one"] is not worker.graph.plain
    patches.revert()
    assert worker.entries["one"] is worker.graph.plain
    assert patches.conflicts == []


def test_graphs_that_were_captured_anew_meanwhile_are_left() -> None:
    worker = Worker()
    patches = worker.patched()
    patches.install()
    worker.entries["one"] = newer = Launched(worker.device)
    patches.revert()
    assert worker.entries["one"] is newer
    assert patches.conflicts == ["one"]


def test_a_mark_that_fails_ends_the_marks_and_hurts_nobody() -> None:
    worker = Worker()
    worker.patched().install()

    def fail() -> bool:
        raise RuntimeError("device lost")

    worker.graph.events[-1].query = fail  # type: ignore[method-assign]
    for _ in range(3 * EVERY):
        worker.cycle()
    assert (worker.clock.errors, worker.clock.first_error) == (1, "RuntimeError('device lost')")
    assert worker.replays() == (3 * EVERY - 1, 1)
    assert len(read_all(worker.clock)) == 3 * EVERY


def test_a_stand_in_is_otherwise_the_graph_itself() -> None:
    worker = Worker()
    worker.patched().install()
    assert worker.entries["one"].device is worker.device  # type: ignore[attr-defined]


def test_the_recorder_sends_parts_as_frames() -> None:
    worker = Worker()
    worker.patched().install()
    for _ in range(EVERY + 1):
        worker.cycle()
    recorder = Recorder(gpu=worker.clock)
    assert recorder.wrap(lambda: None, Site("draft.forward", 0)) is not None
    (frame,) = [frame for frame in recorder.drain() if frame["type"] == "parts"]
    assert frame["shape"] == [len(PARTS), WIDTH]
    records = recorder.health()["gpu_records"]
    assert records == 2 * (EVERY + 1) + len(PARTS) + 1


def played(told: Frame, parts: list[tuple[str, int, int, int]]) -> Recording:
    """Two cycles of an engine with its worker in it, whose drafter's graph takes 600 ns on the GPU."""
    engine = Played("engine")
    for step in (1, 2, 3):
        at = 10_000 * step
        engine.row("cycle", at, at + 9_000).schedule(step, at + 10).execute(step, at + 20)
        engine.row("draft.propose", at + 100, at + 900).row("draft.forward", at + 200, at + 300)
        engine.timed("draft.forward", at + 200, at + 300, at + 5_000, at + 5_600)
        engine.update(step, at + 8_000, 2, 1)
    frames = frames_of(engine)
    rows = np.array([(SPAN_ID[name], *rest) for name, *rest in parts], dtype=np.int64).reshape(-1, WIDTH)
    frames.insert(3, {"type": "parts", "process": 0, **pack_rows(rows)})
    frames.append({"type": "described", "process": 0, "server": {}, "gpu": None, "graph_spans": told})
    frames.append({"type": "end"})
    assert len(unpack_rows(frames[3])) == len(parts)
    return join(complete_header(header(), frames), frames, partial=False)


def test_a_part_lies_in_the_gpu_span_in_which_its_graph_was_replayed() -> None:
    parts = [
        ("draft.forward.layers", 20_250, 0, 400),
        ("draft.forward.logits", 20_250, 410, 590),
        ("target.forward.embedding", 20_250, 0, 100),
        ("draft.forward.layers", 25_000, 0, 100),
    ]
    recording = played({"spans": {}}, parts)
    spans = recording.spans
    found = np.isin(spans.name, [SPAN_ID[name] for name in GRAPH_PARTS])
    whole = spans.start[(spans.name == SPAN_ID["draft.forward"]) & (spans.track == Track.GPU)]
    begin = int(whole[1])
    assert spans.track[found].tolist() == [Track.GPU] * 2
    assert spans.cycle[found].tolist() == [1, 1]
    assert spans.start[found].tolist() == [begin, begin + 410]
    assert spans.end[found].tolist() == [begin + 400, begin + 590]


def marked(recording: Recording, sizes: dict[str, float], every: int, slower: float = 0.0) -> Recording:
    """Each `every`-th GPU span of draft.forward has parts of these sizes in ms, and takes so many ms longer."""
    spans = recording.spans
    whole = np.flatnonzero((spans.name == SPAN_ID["draft.forward"]) & (spans.track == Track.GPU))[::every]
    end = spans.end.copy()
    end[whole] += int(slower * 1e6)
    rows: list[dict[str, np.ndarray]] = []
    begin = spans.start[whole] + LAUNCH_NS
    for name, size in sizes.items():
        stop = begin + int(size * 1e6)
        more = {column: values[whole] for column, values in vars(spans).items()}
        rows.append({**more, "name": np.full(len(whole), SPAN_ID[name], dtype=np.int16), "start": begin, "end": stop})
        begin = stop
    columns = {
        name: np.concatenate([end if name == "end" else values, *(row[name] for row in rows)])
        for name, values in vars(spans).items()
    }
    return Recording(recording.header, recording.cycles, Spans(**columns), recording.partial)


TOLD = {
    "empty_ns": 2_000.0,
    "spans": {"draft.forward": {"marks": 4, "graphs": 3, "plain_ms": 0.689, "marked_ms": 0.697}},
    "missing": {"target.forward.logits": "vLLM computes them after the graph, in sample"},
}
SIZES = {"draft.forward.layers": 0.5, "draft.forward.logits": 0.15, "draft.forward.sampling": 0.032}


def told_recording(every: int = 3) -> Recording:
    recording = make_recording(kernels=NEMOTRON_GPU, cycles=300, noise=0.0)
    recording.header["processes"][0]["graph_spans"] = TOLD
    return marked(recording, SIZES, every, slower=0.008)


def test_the_table_shows_parts_on_the_gpu_only_and_of_the_cycles_that_have_them() -> None:
    table = span_table(told_recording())
    names = [row.name for row in table.rows]
    at = names.index("draft.forward")
    assert names[at + 1 : at + 4] == list(SIZES)
    for name, size in SIZES.items():
        row = table.row(name)
        assert row is not None
        assert row.host is None
        assert row.gpu is not None
        assert row.gpu.ms == pytest.approx(size, rel=1e-3)
        assert row.calls == 1
        period = table.row("cycle")
        assert period is not None
        assert period.host is not None
        assert row.gpu.share == pytest.approx(size / period.host.ms, rel=0.02)


def test_the_residual_is_what_no_part_explains_without_what_marks_read() -> None:
    found = graph_parts(told_recording())
    assert found is not None
    (one,) = found.sums
    assert (one.span, one.cycles, one.marks) == ("draft.forward", 100, 4)
    assert one.parts_ms == pytest.approx(sum(SIZES.values()))
    assert one.launch_us == pytest.approx(LAUNCH_NS / 1e3)
    assert one.whole_ms == pytest.approx(0.689 + 0.008 - LAUNCH_NS / 1e6 - 3 * 0.002)
    assert one.residual == pytest.approx(1 - one.parts_ms / one.whole_ms)
    assert one.cost_us == pytest.approx(8.0, rel=0.01)
    assert one.start_cost_us == pytest.approx(8.0)
    assert one.cost_share == pytest.approx(0.008 / one.whole_ms)


def test_the_report_says_what_the_parts_are_of_the_graph_and_what_is_not_timed() -> None:
    facts = graph_facts(graph_parts(told_recording()))
    assert [fact.label for fact in facts] == ["graph parts", "not timed"]
    assert facts[0].parts == (
        "draft.forward 0.68 of 0.69 ms, residual 0.6%",
        "in 100 cycles with 4 marks, the first 5.00 us after the launch",
        "marks cost 8.00 us a replay at start, 8.00 us here (1.2%)",
    )
    assert facts[0].style == ""
    assert facts[1].parts == ("target.forward.logits: vLLM computes them after the graph, in sample",)


def test_a_residual_beyond_the_goal_is_pointed_out() -> None:
    recording = make_recording(kernels=NEMOTRON_GPU, cycles=300, noise=0.0)
    recording.header["processes"][0]["graph_spans"] = TOLD
    (fact, _) = graph_facts(graph_parts(marked(recording, {"draft.forward.layers": 0.5}, 3)))
    assert fact.style


def test_who_did_not_ask_is_told_nothing() -> None:
    assert graph_parts(make_recording()) is None
    assert graph_facts(None) == []


def test_who_asked_and_got_none_is_told_why() -> None:
    why = {"graph spans": "no CUDA graphs here: this server runs without a GPU"}
    recording = make_recording()
    recording.header["processes"][0]["graph_spans"] = {"empty_ns": 0.0, "spans": {}, "missing": why}
    assert graph_parts(recording) == GraphParts((), why, 0.0)
