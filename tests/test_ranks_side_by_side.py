"""Ranks side by side, by hand: what each span takes on each, who is last in it, who is waited for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from journals import Played, joined

from analyzers.ranks import RankRow, Ranks, rank_skew
from analyzers.trust import trust
from spantrace.cli.ranking import communication, with_ranks
from spantrace.cli.wording import configuration_line
from spantrace.errors import SpantraceError
from spantrace.ranks import of_chosen, of_rank, ranks, slowest
from spantrace.recording import Recording
from spantrace.spans import GraphMode, Kind
from spantrace.tables import Column, Document, Headline, Table, markdown

MS = 1_000_000
CYCLES = 5


def server(*workers: Played) -> Recording:
    """An engine whose cycles take 10 ms, and these workers."""
    engine = Played("engine", 1)
    for step in range(1, CYCLES + 2):
        at = 10 * MS * step
        engine.row("cycle", at, at + 9 * MS).row("schedule", at, at + MS)
        engine.schedule(step, at + 1).update(step, at + 9 * MS - 1, 2, 1)
    return joined(*workers, engine)


def worker(late: float = 0.0, sample: float = 1.0, communication: float | None = None, pid: int = 2) -> Played:
    """A rank that begins its forward so many ms late, has all-reduces in it, ends it at 5 ms, and then samples."""
    played = Played("worker", pid)
    for step in range(1, CYCLES + 2):
        at = 10 * MS * step
        begin, end = at + MS + round(late * MS), at + 5 * MS
        played.execute(step, begin - 1, GraphMode.NONE if communication is not None else GraphMode.FULL)
        played.row("target.forward", begin, end).row("sample", end, end + round(sample * MS))
        if communication is not None:
            half = round(communication * MS / 2)
            played.row("communication", end - 2 * half, end - half).row("communication", end - half, end)
    return played


def row(found: Ranks, name: str) -> RankRow:
    """The row of one span."""
    return next(one for one in found.rows if one.name == name)


def side_by_side(recording: Recording) -> Ranks:
    """What is found of ranks that are there."""
    found = rank_skew(recording)
    assert found is not None
    return found


def test_one_rank_has_nothing_beside_it() -> None:
    recording = server(worker())
    document = Document("report", (("line",),), Headline("WORD", ("It is so.",)), Table((Column("span", "span"),), ()))
    assert rank_skew(recording) is None
    assert of_chosen(recording) is recording
    assert with_ranks(document, recording, frozenset({Kind.STEADY}), None) is document


def test_the_rank_that_waits_least_in_communication_is_the_slowest() -> None:
    recording = server(worker(communication=2.5), worker(late=1.0, sample=1.5, communication=0.5, pid=3))
    found = side_by_side(recording)
    assert (found.ranks, found.slowest) == ((0, 1), 1)
    assert found.behind == pytest.approx(2.0)
    assert found.behind_share == pytest.approx(0.2)
    assert not found.even
    # Of 4 and 3 ms in the forward 2.5 and 0.5 are communication: 1.5 against 2.5, and 1 against 1.5 ms of sampling.
    assert (found.longest, found.longer) == ("target.forward", pytest.approx(1.0))
    assert found.communication == (pytest.approx(2.5), pytest.approx(0.5))
    assert found.communication_share == (pytest.approx(0.25), pytest.approx(0.05))
    assert found.communication_calls == 2


def test_each_span_has_its_skew_and_its_critical_rank() -> None:
    found = side_by_side(server(worker(sample=3.0), worker(late=1.0, pid=3)))
    forward, sample = row(found, "target.forward"), row(found, "sample")
    assert forward.host == (pytest.approx(4.0), pytest.approx(3.0))
    assert (forward.first_skew, forward.last_skew) == (pytest.approx(1.0), 0.0)
    assert (sample.first_skew, sample.last_skew, sample.p90_skew) == (0.0, pytest.approx(2.0), pytest.approx(2.0))
    assert (sample.critical, sample.critical_share) == (0, 1.0)
    assert {one.name for one in found.rows} == {"target.input_prep", "target.forward", "sample"}


def test_without_communication_the_last_to_begin_its_forward_is_the_slowest() -> None:
    recording = server(worker(), worker(late=1.5, pid=3))
    found = side_by_side(recording)
    assert (found.slowest, found.behind) == (1, pytest.approx(1.5))
    assert found.communication == (None, None)
    assert "inside the CUDA graphs" in communication(found).parts[0]


def on_gpu(late: float = 0.0, queued: float = 0.0, sample: float = 1.0, pid: int = 2) -> Played:
    """A rank whose GPU passes every event so many ms after its record, its forward's first one so many ms later."""
    played = Played("worker", pid)
    for step in range(1, CYCLES + 2):
        at = 10 * MS * step
        played.execute(step, at + MS // 2, GraphMode.FULL)
        begin, end = at + MS + round((queued + late) * MS), at + 6 * MS + round(queued * MS)
        played.row("target.forward", at + MS, at + 2 * MS).row("sample", at + 2 * MS, at + 3 * MS)
        played.timed("target.forward", at + MS, at + 2 * MS, begin, end)
        played.timed("sample", at + 2 * MS, at + 3 * MS, end, end + round(sample * MS))
    return played


@pytest.mark.parametrize("queued", [0.0, 2.5])
def test_a_gpu_that_is_never_idle_is_not_called_early_or_late(queued: float) -> None:
    """What delays all events of a GPU looks like another clock: the end of the forward tells the two apart."""
    found = side_by_side(server(on_gpu(), on_gpu(queued=queued, pid=3)))
    assert (found.even, found.behind, found.end_together) == (True, 0.0, True)
    sample = row(found, "sample")
    assert (sample.first_skew, sample.last_skew) == (0.0, 0.0)


@pytest.mark.parametrize("queued", [0.0, 2.5])
def test_the_rank_whose_forward_takes_the_least_began_it_last_and_is_waited_for(queued: float) -> None:
    found = side_by_side(server(on_gpu(sample=1.25), on_gpu(late=1.5, queued=queued, pid=3)))
    assert (found.slowest, found.behind) == (1, pytest.approx(1.5))
    sample = row(found, "sample")
    assert (sample.last_skew, sample.critical) == (pytest.approx(0.25), 0)


def test_where_layers_are_dealt_out_in_a_pipeline_each_gpu_has_its_own_clock() -> None:
    recording = server(on_gpu(), on_gpu(late=1.5, pid=3))
    header = {**recording.header, "server": {**recording.header["server"], "pipeline_parallel": 2}}
    found = side_by_side(replace(recording, header=header))
    assert not found.end_together
    document = Document("report", (("line",),), Headline("WORD", ("It is so.",)), Table((Column("span", "span"),), ()))
    said = markdown(with_ranks(document, replace(recording, header=header), frozenset({Kind.STEADY}), None))
    assert "by up to a cycle off" in said


def test_ranks_at_one_pace_are_called_even() -> None:
    found = side_by_side(server(worker(), worker(late=0.05, pid=3)))
    assert found.even
    assert not found.tells(0.05)


def test_a_rank_is_looked_at_alone_or_with_the_engine() -> None:
    recording = server(worker(), worker(late=1.5, pid=3))
    assert np.nanmedian(of_rank(recording, 1).durations("schedule")) == MS
    assert np.isnan(of_rank(recording, 1, alone=True).durations("schedule")).all()
    assert np.nanmedian(of_rank(recording, 0).durations("target.forward")) == 4 * MS
    assert np.array_equal(of_chosen(recording).spans.start, of_rank(recording, slowest(recording)).spans.start)
    with pytest.raises(SpantraceError, match="no rank 2, only ranks 0, 1"):
        of_rank(recording, 2)


def test_the_section_names_the_slowest_in_the_report_and_is_not_in_that_of_one_rank() -> None:
    recording = server(worker(communication=2.5), worker(late=1.0, communication=0.5, pid=3))
    document = Document("report", (("line",),), Headline("WORD", ("It is so.",)), Table((Column("span", "span"),), ()))
    steady = frozenset({Kind.STEADY})
    both, one, every = (markdown(with_ranks(document, recording, steady, asked)) for asked in (None, "0", "all"))
    assert "**RANK 1 SLOWEST.** The others wait for it in communication, up to 2.00 ms (20% of a cycle)." in both
    assert configuration_line(of_chosen(recording), steady)[-1] == "rank 1 of 2"
    assert "rank" not in " ".join(configuration_line(server(worker()), steady))
    assert "SLOWEST" not in one
    assert "- rank 1: host only" in every
    assert "- rank 1: host only" not in both


def test_an_optimization_that_is_not_on_on_every_rank_is_a_doubt() -> None:
    first, second = worker(), worker(pid=3)
    first.counted = [{"id": "host-copies", "hits": 3, "fallbacks": 0, "errors": 0, "reasons": {}}]
    texts = [doubt.text for doubt in trust(server(first, second)).doubts if doubt.refuse]
    assert texts == ["host-copies was not on on rank 1: restart the server, its log says why"]
    second.counted = [dict(first.counted[0])]
    assert not [doubt for doubt in trust(server(first, second)).doubts if doubt.refuse]


def test_a_recording_that_names_no_rank_is_rank_0() -> None:
    recording = server(worker())
    old = replace(recording, header={**recording.header, "processes": [{"role": "worker"}, {"role": "engine"}]})
    assert ranks(old.header) == {}
    assert of_chosen(old) is old
    assert of_rank(old, 0) is old
    with pytest.raises(SpantraceError, match="no rank 1, only rank 0"):
        of_rank(old, 1)
