"""Rows and facts of several processes become cycles; every expected value is worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from journals import Played, frames_of, header, joined, sync_server

from spantrace.clock_offset import clock_offset
from spantrace.errors import SpantraceError
from spantrace.header import complete_header
from spantrace.joining import join
from spantrace.ranks import of_rank, ranks
from spantrace.recording import Recording
from spantrace.spans import SPAN_NAMES, GraphMode, Kind, Track


def rows_of(recording: Recording, *names: str, track: Track = Track.HOST) -> list[tuple[str, int, int, int]]:
    """(name, cycle, start, end) of the spans with these names, in order of their start."""
    spans = recording.spans
    columns = (spans.name.tolist(), spans.cycle.tolist(), spans.start.tolist(), spans.end.tolist())
    rows = zip((SPAN_NAMES[name] for name in columns[0]), *columns[1:], spans.track.tolist(), strict=True)
    return [row[:4] for row in rows if row[4] == track and (not names or row[0] in names)]


def kinds(recording: Recording) -> list[Kind]:
    return [Kind(kind) for kind in recording.cycles.kind]


def turns(engine: Played, steps: Iterable[int]) -> Played:
    """Turns of 900 ns, one a microsecond, whose steps are scheduled and updated with one draft of one accepted."""
    for step in steps:
        engine.row("cycle", 1000 * step, 1000 * step + 900)
        engine.schedule(step, 1000 * step + 10).update(step, 1000 * step + 800, 1, 1)
    return engine


def test_a_server_in_two_processes() -> None:
    recording = joined(*sync_server())
    cycles = recording.cycles
    assert cycles.step.tolist() == [1, 2, 3]
    assert cycles.start.tolist() == [1000, 2000, 3000]
    assert cycles.end.tolist() == [1900, 2900, 3900]
    assert cycles.period.tolist() == [1000, 1000, -1]
    assert cycles.batch.tolist() == [1, 1, 1]
    assert cycles.scheduled_tokens.tolist() == [3, 3, 3]
    assert cycles.drafting.tolist() == [1, 1, 1]
    assert cycles.drafted.tolist() == [[1, 1]] * 3
    assert cycles.accepted.tolist() == [[1, 0]] * 3
    assert cycles.graph_mode.tolist() == [GraphMode.FULL] * 3
    assert kinds(recording) == [Kind.STEADY] * 3
    assert rows_of(recording)[:8] == [
        ("cycle", 0, 1000, 1900),
        ("schedule", 0, 1010, 1060),
        ("output.wait", 0, 1100, 1700),
        ("target.input_prep", 0, 1120, 1150),
        ("target.forward", 0, 1150, 1250),
        ("sample", 0, 1300, 1400),
        ("draft.propose", 0, 1450, 1650),
        ("output.update", 0, 1750, 1800),
    ]
    assert recording.header["lanes"] == [{"process": 0, "thread": "main"}, {"process": 1, "thread": "main"}]
    assert recording.header["left_out"] == {"partial": 0}
    assert not recording.partial


def test_a_worker_that_runs_behind_is_joined_by_its_step_not_by_time() -> None:
    engine, worker = turns(Played("engine"), [1, 2, 3]), Played("worker")
    for step in (1, 2, 3):
        late = 1000 * step + 1500
        worker.execute(step, late).row("target.forward", late + 10, late + 20)
    expected = [("target.forward", 0, 2510, 2520), ("target.forward", 1, 3510, 3520), ("target.forward", 2, 4510, 4520)]
    assert rows_of(joined(engine, worker), "target.forward") == expected


def test_the_order_of_processes_and_frames_does_not_matter() -> None:
    engine, worker = sync_server()
    swapped = joined(worker, engine)
    assert rows_of(swapped) == rows_of(joined(engine, worker))
    assert [lane["process"] for lane in swapped.header["lanes"]] == [1, 0]
    frames = frames_of(engine, worker)
    backwards = join(complete_header(header(), frames), frames[::-1], partial=False)
    assert rows_of(backwards) == rows_of(swapped)


def test_with_async_scheduling_a_step_is_updated_a_turn_later() -> None:
    engine = Played("engine")
    for step in (5, 6, 7):
        at = 1000 * step
        engine.row("cycle", at, at + 900).schedule(step, at + 10)
        engine.update(step - 1, at + 700, 2, step - 5)
    recording = joined(engine)
    assert recording.cycles.step.tolist() == [5, 6]
    assert recording.cycles.accepted.tolist() == [[1, 0], [1, 1]]
    assert recording.cycles.period.tolist() == [1000, 1000]
    assert recording.header["left_out"] == {"partial": 1}


def test_steps_that_a_process_did_not_see_whole_are_left_out() -> None:
    engine, worker = Played("engine"), Played("worker")
    engine.schedule(1, 950).update(1, 990, 2, 2)  # before the first turn that was recorded whole
    turns(engine, [2, 3, 4])
    engine.row("schedule", 5010, 5020).schedule(5, 5010)  # its turn was still running at the end
    for step in (1, 3, 4):  # the worker's hooks came in during step 2
        worker.execute(step, 1000 * step + 100).row("sample", 1000 * step + 110, 1000 * step + 120)
    recording = joined(engine, worker)
    assert recording.cycles.step.tolist() == [3, 4]
    assert rows_of(recording) == [
        ("cycle", 0, 3000, 3900),
        ("sample", 0, 3110, 3120),
        ("cycle", 1, 4000, 4900),
        ("sample", 1, 4110, 4120),
    ]
    assert recording.header["left_out"] == {"partial": 1}


def test_rows_before_the_workers_first_step_are_left_out() -> None:
    engine, worker = turns(Played("engine"), [1]), Played("worker")
    worker.row("sample", 900, 950).execute(1, 1000).row("sample", 1100, 1150)
    assert rows_of(joined(engine, worker), "sample") == [("sample", 0, 1100, 1150)]


def test_engine_and_worker_in_one_process() -> None:
    engine = turns(Played("engine"), [1, 2])
    for at in (1000, 2000):
        engine.execute(at // 1000, at + 100, GraphMode.PIECEWISE).row("target.forward", at + 200, at + 300)
    recording = joined(engine)
    assert rows_of(recording, "target.forward") == [
        ("target.forward", 0, 1200, 1300),
        ("target.forward", 1, 2200, 2300),
    ]
    assert recording.cycles.graph_mode.tolist() == [GraphMode.PIECEWISE] * 2
    assert len(recording.header["lanes"]) == 1


def test_of_several_workers_all_rows_are_kept_and_all_must_see_a_step() -> None:
    engine, first, second = turns(Played("engine"), [1, 2]), Played("worker"), Played("worker")
    first.execute(1, 1100).row("sample", 1110, 1120).execute(2, 2100).row("sample", 2110, 2120)
    second.execute(1, 1105).row("sample", 1115, 1125)
    recording = joined(first, second, engine)
    assert recording.cycles.step.tolist() == [1]
    assert rows_of(recording, "sample") == [("sample", 0, 1110, 1120), ("sample", 0, 1115, 1125)]
    assert [process["rank"] for process in recording.header["processes"]] == [0, 1, None]
    assert ranks(recording.header) == {0: 0, 1: 1}
    assert rows_of(of_rank(recording, 1), "sample", "cycle") == [("cycle", 0, 1000, 1900), ("sample", 0, 1115, 1125)]
    assert rows_of(of_rank(recording, 0, alone=True)) == [("sample", 0, 1110, 1120)]


def test_a_cycle_is_in_detail_where_it_is_so_on_every_rank() -> None:
    engine, first, second = turns(Played("engine"), range(1, 7)), Played("worker"), Played("worker")
    for step in range(1, 7):
        first.execute(step, 1000 * step + 100, detail=step < 6)
        second.execute(step, 1000 * step + 105, detail=step < 5)
    # A neighbour that is not in detail takes the cycle before it with it.
    recording = joined(first, second, engine)
    assert recording.cycles.detail.tolist() == [True, True, True, False, False, False]


def test_kinds() -> None:
    engine = Played("engine")
    for step in range(1, 10):
        engine.row("cycle", 1000 * step, 1000 * step + 900)
    engine.schedule(1, 1010, tokens=30, batch=2, prefill=2, drafts=0).update(1, 1800, live=2)
    engine.schedule(2, 2010, tokens=33, batch=2, prefill=1).update(2, 2800, 2, 0, live=2)
    engine.schedule(3, 3010, batch=2, drafts=2).update(3, 3800, 2, 1, 2, 2, live=2)
    engine.schedule(4, 4010, batch=2, drafts=1).update(4, 4800, 2, 1, live=2)
    engine.schedule(5, 5010, batch=2, drafts=2, skip=1).update(5, 5800, 2, 1, 2, 1, live=2)
    engine.idle(5910, 5990)
    engine.schedule(6, 6010).update(6, 6800, 2, 2)
    engine.schedule(7, 7010, tokens=0, batch=0, drafts=0).update(7, 7800, live=0)
    engine.schedule(8, 8010).update(8, 8800, live=0)  # turn 9 schedules nothing
    recording = joined(engine)
    assert kinds(recording) == [
        Kind.PREFILL,
        Kind.MIXED,
        Kind.STEADY,
        Kind.DRAFT_SKIPPED,
        Kind.DRAFT_SKIPPED,
        Kind.AFTER_IDLE,
        Kind.EMPTY,
        Kind.GHOST,
        Kind.EMPTY,
    ]
    assert recording.cycles.period.tolist() == [1000, 1000, 1000, 1000, -1, 1000, 1000, 1000, -1]
    assert recording.cycles.drafting.tolist() == [0, 1, 2, 1, 2, 1, 0, 0, 0]
    assert recording.cycles.drafted.tolist()[2] == [2, 2]
    assert recording.cycles.accepted.tolist()[2] == [2, 1]
    assert recording.cycles.step.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, -1]
    assert recording.cycles.scheduled_tokens.tolist() == [30, 33, 3, 3, 3, 3, 0, 3, 0]


def test_a_prefill_after_idle_is_a_prefill() -> None:
    engine = Played("engine").idle(100, 900).row("cycle", 1000, 1900).schedule(1, 1010, prefill=1, drafts=0)
    assert kinds(joined(engine.update(1, 1800))) == [Kind.PREFILL]


def test_without_speculation_a_cycle_without_drafts_is_steady() -> None:
    engine = Played("engine").row("cycle", 1000, 1900).schedule(1, 1010, tokens=1, drafts=0).update(1, 1800)
    recording = joined(engine, drafts=0)
    assert kinds(recording) == [Kind.STEADY]
    assert recording.cycles.drafted.shape == recording.cycles.accepted.shape == (1, 0)
    assert kinds(joined(engine, drafts=2)) == [Kind.DRAFT_SKIPPED]


def test_the_first_steady_cycles_are_warm_up() -> None:
    engine = Played("engine").row("cycle", 0, 900).schedule(9, 10, prefill=1, drafts=0).update(9, 800)
    recording = joined(turns(engine, [1, 2, 3]), warmup=2)
    assert kinds(recording) == [Kind.PREFILL, Kind.WARMUP, Kind.WARMUP, Kind.STEADY]


def test_more_drafts_than_configured_widen_the_positions() -> None:
    engine = turns(Played("engine"), [1]).row("cycle", 2000, 2900).schedule(2, 2010).update(2, 2800, 4, 3)
    recording = joined(engine)
    assert recording.cycles.drafted.tolist() == [[1, 0, 0, 0], [1, 1, 1, 1]]
    assert recording.cycles.accepted.tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]


def test_a_row_in_one_of_its_own_name_is_the_same_span() -> None:
    engine = turns(Played("engine"), [1])
    engine.row("draft.forward", 1100, 1200).row("draft.forward", 1110, 1190).row("draft.forward", 1100, 1150)
    engine.row("draft.forward", 1200, 1300)  # follows: not nested
    engine.row("sample", 1120, 1130).row("sample", 1120, 1130, lane=1)
    recording = joined(engine)
    assert rows_of(recording, "draft.forward") == [("draft.forward", 0, 1100, 1200), ("draft.forward", 0, 1200, 1300)]
    assert len(rows_of(recording, "sample")) == 2


def test_inside_the_proposer_rows_have_their_draft_name() -> None:
    engine = turns(Played("engine"), [1])
    engine.row("draft.propose", 1200, 1600)
    for at in (1100, 1300):
        engine.row("target.forward", at, at + 10, in_draft="draft.forward")
        engine.row("target.metadata", at + 20, at + 30, in_draft="")
        engine.row("sample", at + 40, at + 50)
    engine.row("target.forward", 1300, 1310, in_draft="draft.forward", lane=1)
    assert rows_of(joined(engine))[1:] == [
        ("target.forward", 0, 1100, 1110),
        ("target.metadata", 0, 1120, 1130),
        ("sample", 0, 1140, 1150),
        ("draft.propose", 0, 1200, 1600),
        ("draft.forward", 0, 1300, 1310),
        ("target.forward", 0, 1300, 1310),
        ("sample", 0, 1340, 1350),
    ]


def test_a_renamed_row_in_one_of_that_name_is_the_same_span() -> None:
    engine = turns(Played("engine"), [1]).row("draft.propose", 1200, 1600).row("draft.forward", 1210, 1400)
    engine.row("target.forward", 1220, 1300, in_draft="draft.forward")
    assert rows_of(joined(engine), "draft.forward", "target.forward") == [("draft.forward", 0, 1210, 1400)]


def worked(*rows: tuple[str, int, int]) -> list[tuple[str, int, int]]:
    """What a worker's rows in the one step that it is handed at 1100 become."""
    worker = Played("worker").execute(1, 1100)
    for row in rows:
        worker.row(*row)
    return [(name, start, end) for name, _, start, end in rows_of(joined(turns(Played("engine"), [1]), worker))[1:]]


def test_input_prep_lies_between_the_handing_over_and_the_forward_pass_less_the_metadata() -> None:
    assert worked(("target.forward", 1300, 1310)) == [("target.input_prep", 1100, 1300), ("target.forward", 1300, 1310)]
    metadata = ("target.metadata", 1150, 1200)
    assert worked(metadata, ("target.metadata.attention", 1160, 1170), ("target.forward", 1300, 1310)) == [
        ("target.input_prep", 1100, 1150),
        metadata,
        ("target.metadata.attention", 1160, 1170),
        ("target.input_prep", 1200, 1300),
        ("target.forward", 1300, 1310),
    ]
    assert worked(metadata) == [metadata]


def test_postprocess_begins_where_the_work_before_it_ended() -> None:
    sample, propose = ("sample", 1400, 1450), ("draft.propose", 1500, 1600)
    assert worked(sample, ("postprocess", 1470, 1480)) == [sample, ("postprocess", 1450, 1480)]
    assert worked(sample, propose, ("postprocess", 1650, 1660)) == [sample, propose, ("postprocess", 1600, 1660)]
    assert worked(("postprocess", 1470, 1480)) == [("postprocess", 1100, 1480)]


def test_draft_input_prep_begins_where_the_proposer_or_its_part_before_it_did() -> None:
    propose, forward = ("draft.propose", 1500, 1700), ("draft.forward", 1540, 1600)
    assert worked(propose, ("draft.input_prep", 1520, 1530)) == [propose, ("draft.input_prep", 1500, 1530)]
    assert worked(propose, forward, ("draft.input_prep", 1620, 1630)) == [
        propose,
        forward,
        ("draft.input_prep", 1600, 1630),
    ]


def test_a_step_whose_forward_pass_was_not_seen_borrows_none_from_the_next() -> None:
    worker = Played("worker").execute(1, 1100).execute(2, 2100).row("target.forward", 2200, 2300)
    rows = rows_of(joined(turns(Played("engine"), [1, 2]), worker), "target.input_prep")
    assert rows == [("target.input_prep", 1, 2100, 2200)]


def test_the_graph_of_a_step_is_the_first_that_its_worker_chose_or_launched() -> None:
    worker = Played("worker").execute(1, 1100, GraphMode.PIECEWISE).execute(2, 2100).execute(3, 3100)
    worker.row("target.forward", 1200, 1300).row("target.forward", 2200, 2300).row("sample", 2400, 2500)
    worker.graphs = {"0": int(GraphMode.FULL), "1": int(GraphMode.NONE)}
    recording = joined(turns(Played("engine"), [1, 2, 3]), worker)
    assert recording.cycles.graph_mode.tolist() == [GraphMode.PIECEWISE, GraphMode.FULL, GraphMode.UNKNOWN]


def worker_of(detail: Iterable[bool]) -> Played:
    """A worker in which each step from the first on was in detail or not, with the rows that it then has."""
    worker = Played("worker")
    for step, on in enumerate(detail, 1):
        at = 1000 * step
        worker.execute(step, at + 100, detail=on)
        if on:
            worker.row("target.forward", at + 200, at + 300).row("sample", at + 300, at + 400)
            worker.row("postprocess", at + 450, at + 500)
    return worker


def test_a_cycle_is_in_detail_where_its_worker_says_so_of_it_and_of_its_neighbours() -> None:
    told = [True, True, True, False, False, True, True, True, True, False]
    recording = joined(turns(Played("engine"), range(1, 11)), worker_of(told))
    expected = [True, True, False, False, False, False, True, True, False, False]
    assert recording.cycles.detail.tolist() == expected
    drawn = ("target.input_prep", "postprocess")
    for name in drawn:
        assert [cycle for _, cycle, _, _ in rows_of(recording, name)] == list(np.flatnonzero(told)), name
    lengths = {end - start for name, _, start, end in rows_of(recording, *drawn)}
    assert lengths == {100}, "none begins in a cycle before its own"


def test_a_turn_without_a_step_is_in_detail_as_the_one_before_was() -> None:
    told = [True, True, False, False, False, True, True]
    engine = Played("engine")
    for turn in range(1, 12):
        engine.row("cycle", 1000 * turn, 1000 * turn + 900)
    at = [1, 3, 5, 6, 7, 9, 10]  # turns 2 and 8 and 11 schedule nothing
    worker = Played("worker")
    for step, turn in enumerate(at, 1):
        engine.schedule(step, 1000 * turn + 10).update(step, 1000 * turn + 800, 1, 1)
        worker.execute(step, 1000 * turn + 100, detail=told[step - 1])
    known = np.flatnonzero(joined(engine, worker).cycles.detail) + 1
    assert known.tolist() == [1, 2, 3, 10, 11]


def test_a_worker_that_does_not_say_recorded_everything() -> None:
    assert joined(*sync_server()).cycles.detail.all()
    assert joined(turns(Played("engine"), [1, 2])).cycles.detail.all()


def test_of_several_workers_the_first_says_what_is_in_detail() -> None:
    first, second = worker_of([False, False]), worker_of([True, True])
    assert not joined(first, second, turns(Played("engine"), [1, 2])).cycles.detail.any()


def test_a_neighbour_that_is_left_out_counts_all_the_same() -> None:
    """The update of step 2, which was not in detail, was never seen."""
    engine = turns(Played("engine"), [1, 3, 4]).row("cycle", 2000, 2900).schedule(2, 2010)
    recording = joined(engine, worker_of([True, False, True, True]))
    assert recording.cycles.step.tolist() == [1, 3, 4]
    assert recording.cycles.detail.tolist() == [False, False, True]


def test_rows_between_turns_are_left_out_except_those_of_the_output_thread() -> None:
    engine = turns(Played("engine"), [1, 2])
    engine.row("schedule", 1910, 1950).row("output.emit", 1920, 1960, lane=1).row("output.emit", 2950, 2990, lane=1)
    engine.threads = {"1": "output"}
    recording = joined(engine)
    assert rows_of(recording, "schedule", "output.emit") == [
        ("output.emit", 0, 1920, 1960),
        ("output.emit", 1, 2950, 2990),
    ]
    assert recording.header["lanes"] == [{"process": 0, "thread": "main"}, {"process": 0, "thread": "output"}]


def test_gpu_spans_get_the_host_rows_name_and_cycle_and_the_hosts_clock() -> None:
    engine, worker = turns(Played("engine"), [1, 2]), Played("worker")
    worker.execute(1, 1100).row("target.forward", 1150, 1160).row("draft.propose", 1200, 1300)
    worker.row("target.forward", 1210, 1220, in_draft="draft.forward")
    worker.execute(2, 2100).row("target.forward", 2150, 2160)
    # The GPU's clock is 5000 ahead; it passed the first span's closing mark at once and the others' later.
    worker.timed("target.forward", 1150, 1160, 6152, 6160)
    worker.timed("target.forward", 1210, 1220, 6212, 6452)
    worker.timed("target.forward", 2150, 2160, 7192, 7392)
    worker.timed("target.forward", 1234, 1236, 6500, 6600)  # of a row that was lost
    recording = joined(engine, worker)
    assert rows_of(recording, track=Track.GPU) == [
        ("target.forward", 0, 1152, 1160),
        ("draft.forward", 0, 1212, 1452),
        ("target.forward", 1, 2192, 2392),
    ]
    assert recording.header["lanes"][-1] == {"process": 1, "thread": "GPU stream"}


def test_gpu_spans_of_the_engines_own_process_and_of_a_dropped_row() -> None:
    engine = turns(Played("engine"), [1]).row("sample", 1100, 1200).row("sample", 1110, 1190)
    engine.execute(1, 1050)
    engine.timed("sample", 1110, 1190, 112, 190).timed("sample", 1100, 1200, 102, 200)
    assert rows_of(joined(engine), track=Track.GPU) == [("sample", 0, 1102, 1200)]


def test_an_idle_gpu_starts_when_it_is_launched_to_although_it_ends_late() -> None:
    """The GPU's clock is 5000 ahead and runs every span 300 longer than the host; the second follows the first."""
    engine, worker = turns(Played("engine"), [1]), Played("worker")
    worker.execute(1, 1100).row("target.forward", 1150, 1160).row("sample", 1200, 1210)
    worker.timed("target.forward", 1150, 1160, 6150, 6460).timed("sample", 1200, 1210, 6460, 6800)
    assert rows_of(joined(engine, worker), track=Track.GPU) == [
        ("target.forward", 0, 1150, 1460),
        ("sample", 0, 1460, 1800),
    ]


def test_a_drifting_gpu_clock_is_followed_from_second_to_second() -> None:
    second = 1_000_000_000
    engine, worker = Played("engine"), Played("worker")
    for step in range(1, 5):
        at = step * second
        engine.row("cycle", at, at + 900).schedule(step, at + 10).update(step, at + 800, 1, 1)
        worker.execute(step, at + 100).row("sample", at + 200, at + 300)
        worker.timed("sample", at + 200, at + 300, at + 200 - 1000 * step, at + 300 - 1000 * step)
    starts = [start - cycle * second for _, cycle, start, _ in rows_of(joined(engine, worker), track=Track.GPU)]
    assert starts == pytest.approx([second + 200] * 4, abs=501)  # half a block's drift at most


def test_seconds_in_which_the_gpu_was_never_idle_are_bridged_by_those_in_which_it_was() -> None:
    """The GPU's clock gains 20 us a second; in two seconds of five its events wait 2 ms in the queue."""
    second, start = 1_000_000_000, np.arange(500) * 10_000_000
    passed = start + (start * 20e-6).astype(np.int64) + np.where(np.isin(start // second, [1, 2]), 2_000_000, 0)
    rows = np.column_stack([start * 0, start, start + 10_000, passed, passed + 300_000])
    gained = 20_000 * (start / second)
    np.testing.assert_allclose(clock_offset(rows), -gained, rtol=0, atol=20_000)


def test_a_host_that_was_interrupted_before_it_read_its_clock_shifts_no_gpu_span() -> None:
    """The GPU's clock is 5000 ahead, it passes an idle event 2 us after its record, and each span runs 300 us."""
    start = np.arange(300) * 1_000_000
    interrupted = np.where(np.isin(np.arange(300), [0, 77]), 400_000, 0)
    passed = start + 2_000 + 5_000
    launched = start + interrupted
    rows = np.column_stack([start * 0, launched, launched + 10_000, passed, passed + interrupted + 300_000])
    np.testing.assert_array_equal(clock_offset(rows), np.full(300, -7_000))
    assert (clock_offset(rows[:99]) == 393_000).all(), "too few to tell"


def test_rows_of_sites_that_were_never_named_are_left_out() -> None:
    engine, worker = sync_server()
    worker.row("postprocess", 1660, 1670).timed("postprocess", 1660, 1660, 60, 70)
    frames = frames_of(engine, worker)
    for frame in frames:
        if frame["process"] == 1 and "sites" in frame:
            frame["sites"] = worker.sites[:3]
    recording = join(complete_header(header(), frames), frames, partial=True)
    assert rows_of(recording) == rows_of(joined(*sync_server()))
    for frame in frames:
        if frame["process"] == 1 and "sites" in frame:
            frame["sites"] = []
    only_engine = join(complete_header(header(), frames), frames, partial=True)
    assert {row[0] for row in rows_of(only_engine)} == {"cycle", "schedule", "output.wait", "output.update"}


def test_turns_whose_facts_were_lost_with_the_end_are_partial_and_not_empty() -> None:
    engine = turns(Played("engine"), [1, 2])
    for turn in (3, 4):
        engine.row("cycle", 1000 * turn, 1000 * turn + 900)
    worker = Played("worker").execute(1, 1020).execute(2, 2020)
    whole = joined(engine, worker)
    assert (kinds(whole)[2:], whole.header["left_out"]) == ([Kind.EMPTY, Kind.EMPTY], {"partial": 0})
    frames = [frame for frame in frames_of(engine, worker) if frame["type"] not in ("stopped", "end")]
    cut = join(complete_header(header(), frames), frames, partial=True)
    assert (cut.cycles.step.tolist(), cut.header["left_out"]) == ([1, 2], {"partial": 2})


def test_without_any_cycle_there_is_nothing_to_join() -> None:
    with pytest.raises(SpantraceError, match="holds no cycle; put load on the server"):
        joined(Played("engine").row("schedule", 1, 2), Played("worker").execute(1, 10))


def test_no_complete_cycle_is_a_recording_of_none() -> None:
    recording = joined(Played("engine").row("cycle", 1000, 1900).schedule(1, 1010))
    assert len(recording.cycles) == 0
    assert recording.header["left_out"] == {"partial": 1}


def test_the_header_tells_of_each_process() -> None:
    engine, worker = sync_server()
    frames = frames_of(engine, worker)
    frames.insert(4, {"type": "described", "process": 0, "server": {"model": "m", "method": None}, "gpu": None})
    gpu = {"name": "H200", "uuid": "b"}
    frames.insert(5, {"type": "described", "process": 1, "server": {"model": "m", "runner": "V2"}, "gpu": gpu})
    seen = [{"uuid": "GPU-a", "sm_mhz": 345}, {"uuid": "GPU-b", "sm_mhz": 1980}]
    full = complete_header({**header(), "journal": True, "gpus": seen}, frames[:-1])
    assert full["server"] == {"num_speculative_tokens": 2, "model": "m", "method": None, "runner": "V2"}
    assert full["gpu"] == {"name": "H200", "uuid": "b", "sm_mhz": 1980}
    assert [(one["pid"], one["role"], one["stopped"]) for one in full["processes"]] == [
        (10, "engine", True),
        (11, "worker", False),
    ]
    assert not {"journal", "gpus"} & set(full)


def test_the_gpus_of_all_ranks_are_in_the_header() -> None:
    engine, *workers = Played("engine", 1), Played("worker", 2), Played("worker", 3)
    frames = frames_of(engine, *workers)
    for index, uuid in ((0, None), (1, "a"), (2, "b")):
        gpu = uuid and {"name": "H200", "uuid": uuid}
        frames.append({"type": "described", "process": index, "server": {}, "gpu": gpu})
    seen = [{"uuid": "a", "processes": [2, 7]}, {"uuid": "b", "processes": [3, 8]}, {"uuid": "c", "processes": [9]}]
    full = complete_header({**header(), "gpus": seen}, frames)
    assert full["gpu"] == {"name": "H200", "uuid": "a", "other_processes": [7, 8], "count": 2}
    assert full["processes"][2]["gpu"] == {"name": "H200", "uuid": "b", "other_processes": [8]}
