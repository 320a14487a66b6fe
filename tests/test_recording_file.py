"""Recordings come back from their files, and a file that is cut or foreign is named as such in one sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import frames_of, sync_server, write_journal
from journals import header as journal_header
from recordings import cycles_of, header, make_recording, spans_of

from spantrace.errors import EXIT_BAD_INPUT, SpantraceError
from spantrace.frames import encode, pack_rows
from spantrace.journal import Journal
from spantrace.loading import load
from spantrace.recording import MAGIC, SCHEMA, Recording
from spantrace.spans import Kind, Track


def same(a: Recording, b: Recording) -> bool:
    tables = [(vars(a.cycles), vars(b.cycles)), (vars(a.spans), vars(b.spans))]
    columns = [(left[name], right[name]) for left, right in tables for name in left]
    equal = all(x.dtype == y.dtype and x.shape == y.shape and np.array_equal(x, y) for x, y in columns)
    return equal and (a.header, a.partial) == (b.header, b.partial)


def refusal(path: Path) -> str:
    """The one sentence with which the file is refused."""
    with pytest.raises(SpantraceError) as caught:
        load(path)
    assert caught.value.exit_code == EXIT_BAD_INPUT
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def small() -> Recording:
    rows = [("schedule", Track.HOST, 0, 0, 5), ("target.forward", Track.GPU, 1, 12, 15)]
    return Recording(header(), cycles_of([(0, 10), (10, 20)], drafted=[1, 1], accepted=[1, 0]), spans_of(rows))


@pytest.mark.parametrize("recording", [make_recording(), make_recording(kernels=None, drafts=0, partial=True), small()])
def test_a_recording_comes_back(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "a.spantrace"
    recording.save(path)
    assert same(load(path), recording)
    assert [file.name for file in tmp_path.iterdir()] == ["a.spantrace"]


def test_in_an_older_file_every_cycle_is_in_detail(tmp_path: Path) -> None:
    recording, path = make_recording(cycles=20), tmp_path / "old.spantrace"
    with path.open("wb") as file:
        for frame in recording._frames():
            if frame.get("name") != "detail":
                file.write(encode(frame))
    assert same(load(path), recording)


def test_a_recording_without_cycles_comes_back(tmp_path: Path) -> None:
    recording = small().of_kind(Kind.GHOST)
    recording.save(tmp_path / "a.spantrace")
    assert same(load(tmp_path / "a.spantrace"), recording)


def test_the_cycles_of_one_kind_come_back_with_their_spans_renumbered() -> None:
    rows = [("schedule", Track.HOST, cycle, 10 * cycle, 10 * cycle + cycle) for cycle in range(4)]
    kinds = [Kind.PREFILL, Kind.STEADY, Kind.MIXED, Kind.STEADY]
    steady = Recording(header(), cycles_of([(10 * c, 10 * c + 9) for c in range(4)], kind=kinds), spans_of(rows))
    steady = steady.of_kind()
    assert steady.cycles.step.tolist() == [1, 3]
    assert steady.spans.cycle.tolist() == [0, 1]
    assert steady.durations("schedule").tolist() == [1, 3]
    assert steady.calls("schedule").tolist() == [1, 1]
    assert np.isnan(steady.durations("sample")).all()


def test_a_finished_file_cut_anywhere_is_cut_short_or_partial(tmp_path: Path) -> None:
    path, cut = tmp_path / "whole.spantrace", tmp_path / "cut.spantrace"
    recording = small()
    recording.save(path)
    data, ending = path.read_bytes(), encode({"type": "end"})
    first = len(encode({"type": MAGIC, "schema": SCHEMA, "header": recording.header}))
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        if length < first:
            assert "it is empty or ends within its header" in refusal(cut)
        elif length < len(data) - len(ending):
            assert "the file is cut short" in refusal(cut)
        else:
            assert same(load(cut), dataclasses.replace(recording, partial=True))


def test_a_journal_cut_anywhere_loads_as_partial_or_has_no_cycle(tmp_path: Path) -> None:
    part = write_journal(tmp_path / "a.spantrace", *sync_server())
    data, cut = part.read_bytes(), tmp_path / "cut.part"
    held = []
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        try:
            recording = load(cut)
        except SpantraceError as error:
            said = str(error)
            assert ("holds no cycle" in said or "ends within its header" in said) and "\n" not in said  # noqa: PT018
        else:
            assert recording.partial
            held.append(len(recording.cycles))
    assert held == sorted(held)
    assert held[-1] == 3
    assert not load(part).partial
    assert same(load(part), dataclasses.replace(recording, partial=False))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b"# Notes\n\nNot a recording.\n", "not a frame"),
        (bytes(1000), "not a frame"),
        (b"\xff" * 1000, "not a frame"),
        (b"PK\x03\x04" + bytes(range(256)), "not a frame"),
        (encode({"a": 1}), "its first bytes are not a recording's"),
        (encode({"type": MAGIC}), "is damaged ('schema')"),
        (encode({"type": MAGIC, "schema": None, "header": {}}), "is damaged"),
        (encode({"type": MAGIC, "schema": SCHEMA, "header": 3}), "its header is no map"),
        (encode({"type": MAGIC, "schema": SCHEMA, "header": {"journal": True}}), "holds no cycle"),
        (encode({"type": MAGIC, "schema": SCHEMA, "header": {}}), "the file is cut short"),
        (encode({"type": MAGIC, "schema": SCHEMA + 1, "header": {}}), "written by a newer spantrace (schema 2)"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_sentence(data: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.spantrace"
    path.write_bytes(data)
    assert why in refusal(path)


def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path) -> None:
    assert "Is a directory" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "none")
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in refusal(tmp_path / "loop")


@pytest.mark.parametrize(
    ("table", "column", "rows"),
    [
        ("Spans", "cycle", [[2], [0]]),
        ("Spans", "cycle", [[-1], [0]]),
        ("Spans", "name", [[99], [0]]),
        ("Spans", "start", [[1]]),
        ("Cycles", "step", [[1], [2], [3]]),
        ("Cycles", "start", [[], []]),
        ("Other", "start", [[1]]),
    ],
)
def test_columns_that_do_not_fit_together_are_damage(table: str, column: str, rows: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.spantrace"
    frames = list(small()._frames())
    packed = pack_rows(np.array(rows, dtype=np.int64))
    frames.insert(-1, {"type": "column", "table": table, "name": column, **packed})
    path.write_bytes(b"".join(map(encode, frames)))
    assert "is damaged" in refusal(path)


@given(which=st.sampled_from(["finished", "journal"]), data=st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_file_with_damaged_bytes_is_refused_or_loads(which: str, data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "x.spantrace"
    if which == "finished":
        small().save(path)
    else:
        path = write_journal(path, *sync_server())
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    said = ""
    try:
        spans = load(path).spans
    except SpantraceError as error:
        said = str(error)
    assert "\n" not in said
    assert said or len(spans.cycle) == len(spans.name)


def test_a_recording_replaces_an_older_one_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.spantrace"
    path.write_text("older")
    broken = dataclasses.replace(small(), header={"server": object()})
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_text() == "older"
    small().save(path)
    assert len(load(path).cycles) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["a.spantrace"]


@pytest.mark.parametrize("links", [True, False])
def test_what_is_there_is_not_replaced_unless_asked(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr("os.link", refuse)
    path = tmp_path / "a.spantrace"
    small().save(path, replace=False)
    before = path.read_bytes()
    assert len(load(path).cycles) == 2
    with pytest.raises(SpantraceError, match=r"a.spantrace: a file has appeared there, which is left alone"):
        make_recording(cycles=3).save(path, replace=False)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.spantrace"]


def test_where_neither_links_nor_renaming_work_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", full)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SpantraceError, match=r"a.spantrace: No space left on device"):
        small().save(tmp_path / "a.spantrace", replace=False)
    assert not list(tmp_path.iterdir())


def test_a_journal_takes_the_place_of_another_only_when_forced(tmp_path: Path) -> None:
    path = tmp_path / "a.spantrace"
    write_journal(path, *sync_server())
    with pytest.raises(SpantraceError, match=r"a.spantrace.part exists; choose another name or add --force"):
        Journal(path, journal_header())
    assert len(load(path.with_name("a.spantrace.part")).cycles) == 3
    with Journal(path, journal_header(), force=True) as journal:
        journal.discard()


def test_a_journal_that_breaks_off_with_nothing_but_its_header_goes(tmp_path: Path) -> None:
    frames = frames_of(*sync_server())
    for written in ([], frames):
        journal = Journal(tmp_path / "a.spantrace", journal_header())
        for frame in written:
            journal.write(frame)
        journal.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert journal.part.exists() is bool(written)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpantraceError, match=r"cannot write .*none/a.spantrace: No such file"):
        small().save(tmp_path / "none" / "a.spantrace")
    with pytest.raises(SpantraceError, match=r"cannot write .*none/a.spantrace: No such file"):
        Journal(tmp_path / "none" / "a.spantrace", {})


def test_a_journal_becomes_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.spantrace"
    with Journal(path, journal_header()) as journal:
        for frame in [*frames_of(*sync_server()), {"type": "end"}]:
            journal.write(frame)
        recording = journal.finish()
    assert len(recording.cycles) == 3
    assert same(load(path), recording)
    assert [file.name for file in tmp_path.iterdir()] == ["a.spantrace"]


def test_a_journal_that_cannot_become_a_recording_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.spantrace"
    path.mkdir()
    with Journal(path, journal_header()) as journal, pytest.raises(SpantraceError, match="holds no cycle"):
        journal.finish()
    write_journal(path, *sync_server())
    with pytest.raises(SpantraceError, match=r"cannot write .*a.spantrace: .*; .*a.spantrace.part holds what"):
        journal.finish()
    assert len(load(journal.part).cycles) == 3
    journal.discard()
    assert not journal.part.exists()
