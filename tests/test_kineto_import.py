"""torch.profiler traces as recordings: figures, exact times, cycles by every rule, traces with something wrong."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tracemalloc
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import make_recording
from traced import GPU, HOST, MS, TOKEN, US, annotation, cycles, event, kernel, launch, save, text, written

from analyzers.co_saturation import Verdict, co_saturation, gpu_busy
from analyzers.span_table import span_table
from analyzers.trust import trust
from spantrace.cli.main import run
from spantrace.cli.wording import verdict
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.importers.unpacking import Text
from spantrace.loading import load
from spantrace.recording import Recording
from spantrace.spans import Kind, Track


def imported(events: list[dict[str, Any]], tmp_path: Path, name: str = "a.pt.trace.json.gz", **parts: Any) -> Recording:
    return load(save(events, tmp_path / name, **parts))


def doubts(recording: Recording) -> str:
    return "\n".join(doubt.text for doubt in trust(recording).doubts)


@pytest.mark.parametrize("name", ["a.json", "a.pt.trace.json.gz"])
def test_the_figures_of_a_trace(name: str, tmp_path: Path) -> None:
    found = co_saturation(imported(cycles(20), tmp_path, name))
    assert found is not None
    assert found.gpu is not None
    assert found.kernels is not None
    assert found.period.ms == 10
    assert found.gpu.ms == pytest.approx(6.5), "the union over streams, and the copy"
    assert found.kernels.ms == pytest.approx(6.0)
    assert found.wait.ms == pytest.approx(4.0)
    assert found.host.ms == pytest.approx(2.0)
    assert found.verdict is Verdict.ALTERNATING


def test_spans_have_the_gpu_time_of_what_they_launched(tmp_path: Path) -> None:
    table = span_table(imported(cycles(20), tmp_path))
    cells = {row.name: (row.host and row.host.ms, row.gpu and row.gpu.ms, row.calls) for row in table.rows}
    assert cells["target.forward"] == (1.0, 5.0, 1.0), "two kernels that overlap for 1 ms"
    assert cells["draft.propose"] == (1.0, 1.0, 1.0)
    assert cells["draft.forward"] == (0.9, 1.0, 1.0)
    assert cells["output.wait"] == (4.0, None, 1.0)


def test_times_are_exact(tmp_path: Path) -> None:
    start = 1_790_857_026_123_456_789
    recording = imported(cycles(3, start=start), tmp_path)
    assert recording.cycles.start[0] == start, "as float64 of microseconds it would be off"
    assert float(start) / 1e3 * 1e3 != start
    assert recording.cycles.period[0] == 10 * MS
    assert recording.header["created"].startswith("2026-10-01")


@pytest.mark.parametrize("base", [0, 1_790_857_026_000_000_000])
def test_the_wall_clock_is_the_base_and_the_time(base: int, tmp_path: Path) -> None:
    recording = imported(cycles(3, start=5 * MS), tmp_path, base=base)
    assert recording.header["monotonic_to_realtime_ns"] == base
    assert bool(recording.header["created"]) == bool(base)


def test_cycles_by_vllms_annotation_and_their_kinds(tmp_path: Path) -> None:
    names = ["execute_context_1(512)_generation_0(0)", "execute_context_1(99)_generation_3(12)"]
    names += ["execute_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq16sk9sqsq8sqsk7)"] * 10
    events = cycles(12, steps=False)
    events += [annotation(name, 10**15 + index * 10 * MS, 3 * MS) for index, name in enumerate(names)]
    recording = imported(events, tmp_path)
    assert recording.header["trace"]["cycles_by"] == "the engine's annotations"
    assert recording.cycles.kind.tolist() == [Kind.PREFILL, Kind.MIXED] + [Kind.STEADY] * 9
    assert recording.cycles.batch.tolist() == [1, 4] + [4] * 9
    assert recording.cycles.scheduled_tokens.tolist() == [512, 111] + [16] * 9
    assert recording.header["left_out"] == {"partial": 1}, "of the last the end is not known"


def test_cycles_by_sglangs_and_tensorrt_llms_annotations(tmp_path: Path) -> None:
    events = []
    for index in range(6):
        at = index * 10 * MS
        events += [annotation("step[DECODE bs=8]", at + 1, MS), annotation("step[TARGET_VERIFY bs=8]", at + 2 * MS, MS)]
    recording = imported(events, tmp_path)
    assert len(recording.cycles) == 5, "a draft's step is no cycle of its own"
    assert set(recording.cycles.period.tolist()) == {10 * MS}
    named = "[Executor] _forward_step {}: 0 ctx reqs, 32 gen reqs"
    recording = imported([annotation(named.format(index), index * MS, MS // 2) for index in range(6)], tmp_path)
    assert recording.cycles.batch.tolist() == [32] * 5


def test_cycles_by_the_repeating_graph(tmp_path: Path) -> None:
    events = [one for one in cycles(30, steps=False) if one["cat"] != "user_annotation"]
    small = [one for one in events if one["name"] == "draft_gemm"]
    events += [{**one, "name": "small", "dur": US, "ts": one["ts"] + place * US} for one in small for place in range(4)]
    recording = imported(events, tmp_path)
    assert recording.header["trace"]["cycles_by"] == "the repeating graph launch"
    assert len(recording.cycles) == 29
    assert set(recording.cycles.period.tolist()) == {10 * MS}
    assert recording.cycles.start[0] == 10**15 + MS + 10 * US, "the target's graph leads, it runs longest"
    assert recording.header["trace"]["kernels_in_graphs"] == recording.header["trace"]["kernels"] > 29 * 2
    assert recording.header["trace"]["graph_launches"] == 29 * 2, "those of the cycles, as the kernels are"
    assert "no range of the host is a span" in doubts(recording)


def test_without_any_span_of_the_host_nobody_is_said_to_bound_the_cycle(tmp_path: Path) -> None:
    events = [one for one in cycles(30, steps=False) if one["cat"] != "user_annotation"]
    recording = imported([one for one in events if "ynchronize" not in one["name"]], tmp_path)
    found = co_saturation(recording)
    assert found is not None
    assert (found.verdict, found.host_win, found.gpu_win) == (Verdict.GPU_ONLY, None, None)
    said = " ".join(verdict(found).sentences)
    assert "Without a span of the host there is no verdict" in said
    assert "The host works" not in said


def test_a_piecewise_graph_repeats_within_the_cycle(tmp_path: Path) -> None:
    events, tie = [], 0
    for index in range(40):
        for layer in range(12):
            tie, at = tie + 1, index * 10 * MS + layer * 100 * US
            name, length = ("embed", 20 * US) if not layer else ("head", 30 * US) if layer == 11 else ("layer", 50 * US)
            events += [launch(tie, at, graph=True), kernel(name, at + 50 * US, length, tie)]
    recording = imported(events, tmp_path)
    assert set(recording.cycles.period.tolist()) == {10 * MS}
    assert len(recording.cycles) == 39


def test_other_batch_sizes_in_between_do_not_hide_the_pattern(tmp_path: Path) -> None:
    events = []
    for index in range(60):
        at, tie = index * 10 * MS, 2 * index + 1
        kernels = ["target"] * (5 if index in (7, 30, 31, 50) else 3)
        events += [launch(tie, at, graph=True), launch(tie + 1, at + 6 * MS, graph=True)]
        events += [kernel(name, at + (place + 1) * MS, MS, tie) for place, name in enumerate(kernels)]
        events.append(kernel("draft", at + 7 * MS, MS, tie + 1))
    recording = imported(events, tmp_path)
    assert np.median(recording.cycles.period) == 10 * MS
    assert len(recording.cycles) >= 55


def test_a_step_that_is_annotated_twice_is_one(tmp_path: Path) -> None:
    name = "execute_context_0(0)_generation_1(3)"
    events = [annotation(name, index * 10 * MS + more, 5 * MS - 2 * more) for index in range(8) for more in (0, US)]
    assert set(imported(events, tmp_path).cycles.period.tolist()) == {10 * MS}


def test_an_idle_stretch_is_in_no_period(tmp_path: Path) -> None:
    names = "execute_context_0(0)_generation_1(3)"
    starts = [index * 10 * MS + (500 * MS if index > 5 else 0) for index in range(12)]
    recording = imported([annotation(names, start, 2 * MS) for start in starts], tmp_path)
    assert recording.cycles.period[5] == -1
    assert recording.cycles.end[5] == starts[5] + 2 * MS
    assert "1 turns of over 10 medians" in doubts(recording)


def test_correlation_ids_join_within_their_process_only(tmp_path: Path) -> None:
    """Two ranks that were merged number their launches alike; the first one's spans get its own kernels' time."""
    ranks = []
    for rank, length in enumerate((1, 3)):
        events = cycles(10, pid=HOST)
        for one in events:
            one["pid"] = f"[TP0{rank}] {one['pid']}"
            one["ts"] -= rank * 3 * MS
            if one["name"] == "draft_gemm":
                one["dur"] = length * MS // 2
        ranks += events
    recording = imported(ranks, tmp_path)
    row = span_table(recording).row("draft.forward")
    assert row is not None
    assert row.gpu is not None
    assert row.gpu.ms == 0.5
    assert recording.header["trace"]["kernels"] == 30
    assert "the trace also holds 1 other GPU" in doubts(recording)


def test_without_a_label_a_gpu_is_of_the_process_that_launched_its_kernels(tmp_path: Path) -> None:
    first, second = cycles(10), cycles(10, pid=99)
    for one in second:
        one["pid"] = 1 if one["pid"] == GPU else one["pid"]
        one["args"] = {**one["args"], **({"correlation": one["args"]["correlation"] + 500} if one["args"] else {})}
    recording = imported(first + second, tmp_path)
    assert recording.header["trace"]["kernels"] == 30
    assert recording.header["processes"][0]["pid"] == HOST
    assert "have no launch" not in doubts(recording)


def test_a_trace_without_its_gpu_part_is_not_idle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [one for one in cycles(10) if one["pid"] == HOST]
    recording = imported(events, tmp_path)
    assert gpu_busy(recording) is None
    assert run(["report", str(tmp_path / "a.pt.trace.json.gz")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "HOST ONLY" in out
    assert "the trace has no GPU part: 40 CUDA calls, 20 of graphs, and no kernel" in out
    assert "GPU idle" not in out


def spoiled(tmp_path: Path, **changes: Any) -> Recording:
    """Ten cycles with one more kernel, some of whose fields are other ones."""
    more = {**kernel("gemm", 10**15 + 12 * MS, MS, 11), **changes}
    return imported([*cycles(10), {key: value for key, value in more.items() if value != "absent"}], tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dur": "absent"}, "1 of the trace's events have no duration"),
        ({"dur": -5}, "1 of the trace's events have a negative duration"),
        ({"ts": "soon"}, "1 of the trace's events have no time that can be read"),
        ({"ts": "nan"}, "1 of the trace's events have no time that can be read"),
        ({"ts": 10**40}, "1 of the trace's events have no time that can be read"),
        ({"ts": None}, "1 of the trace's events have no time that can be read"),
        ({"ph": "B"}, "1 of the trace's events are beginnings or ends"),
        ({"args": {}}, "1 of 31 kernels have no launch in the trace"),
        ({"args": {"correlation": "eleven"}}, "1 of 31 kernels have no launch in the trace"),
        ({"args": None}, "1 of 31 kernels have no launch in the trace"),
        ({"args": {"correlation": 77777}}, "1 of 31 kernels have no launch in the trace"),
    ],
)
def test_what_is_wrong_with_an_event_is_counted(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    recording = spoiled(tmp_path, **changes)
    assert said in doubts(recording)
    assert len(recording.cycles) == 10


def test_times_as_text_are_read_and_counted(tmp_path: Path) -> None:
    events = cycles(10)
    plain = imported(events, tmp_path)
    for one in events:
        one["ts"] = f"{one['ts'] // 1000}.{one['ts'] % 1000:03d}"
    recording = imported(events, tmp_path)
    assert np.array_equal(recording.spans.start, plain.spans.start)
    assert recording.header["trace"]["put_right"]["with a time as text"] == len(events)


def test_order_and_duplicates_change_nothing(tmp_path: Path) -> None:
    events = cycles(10)
    plain = imported(events, tmp_path)
    shuffled = [*events, *events[:7]]
    random.Random(1).shuffle(shuffled)
    recording = imported(shuffled, tmp_path)
    for name, column in vars(plain.spans).items():
        assert np.array_equal(vars(recording.spans)[name], column), name
    assert "7 of the trace's events are there twice" in doubts(recording)
    assert recording.header["trace"]["kernels"] == 30
    assert recording.header["trace"]["put_right"]["out of order"] > 0


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_a_trace_that_is_cut_short_keeps_what_came_before(packed: bool, part: float, tmp_path: Path) -> None:
    data = text(cycles(200)).encode()
    data = gzip.compress(data) if packed else data
    path = tmp_path / "cut.json"
    path.write_bytes(data[: int(len(data) * part)])
    recording = load(path)
    assert recording.partial
    assert 200 * part * 0.8 < len(recording.cycles) <= 200 * part * 1.2
    assert "the trace file is cut short" in doubts(recording)


@pytest.mark.parametrize("missing", [1, 8, 12])
def test_a_packed_trace_whose_last_bytes_are_missing_is_cut_too(missing: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(text(cycles(10)).encode())[:-missing])
    recording = load(path)
    assert recording.partial
    assert len(recording.cycles) == 10


def test_packed_parts_and_long_stretches_of_nothing_are_read_whole(tmp_path: Path) -> None:
    data = text(cycles(10)).encode()
    path = tmp_path / "parts.json.gz"
    blank = b" " * 3_000_001
    path.write_bytes(gzip.compress(blank + data[:5000]) + gzip.compress(data[5000:] + blank))
    recording = load(path)
    assert not recording.partial
    assert len(recording.cycles) == 10


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "is no trace: it has no traceEvents"),
        (b'{"name": "x", "version": 2}', "is no trace: it has no traceEvents"),
        (b"{ not json", "is no trace: it is not JSON$"),
        (gzip.compress(b"hello"), "is no trace"),
        (gzip.compress(b""), "is no trace"),
        (b"[1, 2, 3]", "no two cycles are found"),
        (b'{"traceEvents": []}', "no two cycles are found"),
        (gzip.compress(text(cycles(9)).encode())[:-8] + b"12345678", "is damaged"),
        (
            text(cycles(9)).encode().replace(b'"draft.forward"', b"NaN", 1),
            r"is damaged after \d+ events: what follows is not JSON; copy it anew$",
        ),
        (b'{"traceEvents": [{"ts": ' + b"7" * 4500 + b"}]}", "holds a number of over 4,000 digits"),
        (text(cycles(9)).encode()[:200], "the file is cut short: copy it anew"),
    ],
    ids=[
        "empty",
        "no-trace",
        "no-json",
        "packed-text",
        "packed-nothing",
        "numbers",
        "no-events",
        "checksum",
        "nan",
        "digits",
        "cut",
    ],
)
def test_another_kind_of_file_is_one_clear_error(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(SpantraceError, match=said) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("blanks", [0, (1 << 18) - 10, (1 << 18) - 3990])
def test_a_number_that_the_reader_could_not_take_is_found_wherever_it_lies(blanks: int) -> None:
    digits = b"8" * 4001
    with pytest.raises(SpantraceError, match="4,000 digits"):
        list(Text(io.BytesIO(b" " * blanks + digits)).chunks())
    assert b"".join(Text(io.BytesIO(b" " * blanks + digits[1:])).chunks()).strip() == digits[1:]


@pytest.mark.parametrize(
    "name",
    [
        f"ProfilerStep#{{}}{10**20}",
        f"execute_context_0(0)_generation_{10**12}({{}}{10**12})",
        f"execute_new_0_cached_{{}}{10**12}",
        f"step[DECODE bs={{}}{10**12}]",
    ],
)
def test_a_step_with_numbers_that_no_engine_has_is_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpantraceError, match="no two cycles are found"):
        imported([annotation(name.format(index + 1), index * MS, US) for index in range(4)], tmp_path)


def test_what_a_terminal_would_obey_is_not_written_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(cycles(20), tmp_path / "a.json", gpu="\x1b[2JH\x07 \x9b31m")
    for form in ("table", "markdown"):
        assert run(["report", str(path), "--format", form]) == 0
        assert "\ufffd[2JH" in (out := capsys.readouterr().out)
        assert not {letter for letter in out if unicodedata.category(letter) == "Cc"} - {"\n"}
    make_recording(cycles=5, notes=["a \x1b[2J"]).save(tmp_path / "a.spantrace")
    assert run(["report", str(tmp_path / "a.spantrace"), "--format", "json"]) == 0
    assert "doubt: a \ufffd[2J" in capsys.readouterr().err
    assert run(["report", str(tmp_path / "\x1b[31m.json")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_pipe_is_refused_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    reads, writes = os.pipe()
    with open(reads, "rb"), open(writes, "wb") as pipe:
        pipe.write(text(cycles(3)).encode())
        pipe.flush()
        assert run(["report", f"/dev/fd/{reads}"]) == 2
    assert "not seekable" in capsys.readouterr().err


def test_nothing_to_measure_has_its_own_exit_code(tmp_path: Path) -> None:
    assert run(["report", str(save([event("cpu_op", "aten::mm", 1, 2)], tmp_path / "a.json"))]) == EXIT_NOT_COMPARABLE
    events = [{**one, "dur": None} for one in cycles(10)]
    with pytest.raises(SpantraceError, match="events that are wrong: 120 without dur"):
        imported(events, tmp_path)


def test_an_array_of_events_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" + ",".join(written(one) for one in cycles(10)) + "]")
    assert len(load(path).cycles) == 10


def test_no_environment_is_kept_printed_or_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = cycles(10)
    events[0]["args"] = {"HF_TOKEN": TOKEN}
    events += [event("user_annotation", TOKEN, 10**15, 5), kernel(TOKEN, 10**15, 5, 1)]
    path = save(
        [*events, {"ph": "M", "name": "process_name", "pid": HOST, "args": {"name": TOKEN}}], tmp_path / "a.json"
    )
    load(path).save(tmp_path / "a.spantrace")
    assert TOKEN.encode() not in (tmp_path / "a.spantrace").read_bytes()
    for form in ("table", "json", "csv", "markdown"):
        assert run(["report", str(path), "--format", form]) == 0
    assert run(["export", str(path), "--to", "kineto", "-o", str(tmp_path / "b.gz")]) == 0
    written_out, said = capsys.readouterr()
    assert TOKEN not in written_out + said
    assert TOKEN.encode() not in gzip.decompress((tmp_path / "b.gz").read_bytes())


def test_report_states_busy_for_kernels_and_with_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(cycles(10), tmp_path / "a.pt.trace.json.gz")
    assert run(["report", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "trace of PyTorch profiler | cycles by ProfilerStep | H200" in out
    assert "which is busy 6.50 ms (65%), 6.00 of it in kernels" in out
    assert "30 kernels (30 in 20 graph launches) | 10 copies" in out
    assert "at most" not in out
    assert "ms per token" not in out
    assert "no range of the host is a span" not in out
    assert run(["report", str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["co_saturation"]["kernels"]["median"]["value"] == pytest.approx(6.0)
    assert found["economics"]["ms_per_token"] is None


def test_two_traces_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slower = cycles(24)
    for one in slower:
        if one["name"] == "draft_gemm":
            one["dur"] = MS * 3 // 2
    a, b = save(cycles(24), tmp_path / "a.json"), save(slower, tmp_path / "b.json")
    assert run(["compare", str(a), str(b)]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("GPU draft.forward"))
    assert row.split()[2:4] == ["1.00", "1.50"]


def test_reading_keeps_only_what_is_needed(tmp_path: Path) -> None:
    """Most of a trace are operators; memory must not grow with them."""
    operators = [event("cpu_op", f"aten::op{index}", index, 1, note="x" * 900) for index in range(6_000)]
    path = save([*cycles(10), *operators], tmp_path / "a.json")
    assert path.stat().st_size > 5e6
    load(path)
    tracemalloc.start()
    load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5e6


def test_kernels_that_ran_outside_the_cycles_are_not_in_them(tmp_path: Path) -> None:
    events = [*cycles(10), kernel("warm", 10**15 - 9 * MS, 8 * MS, 9001), kernel("late", 10**15 + 200 * MS, MS, 9002)]
    recording = imported(events, tmp_path)
    assert recording.header["trace"]["kernels"] == 30
    assert recording.spans.start[recording.spans.track == Track.GPU].min() > 10**15


@pytest.mark.parametrize("seed", range(3))
def test_odd_values_anywhere_are_counted_or_one_clear_error(seed: int, tmp_path: Path) -> None:
    odd: list[Any] = [None, "x", "", [], {}, [1], {"a": 1}, True, -1, 0.5, 1e300, "1e400", "-7.25", 2**70, "absent"]
    drawn, refused = random.Random(seed), []
    for _ in range(40):
        changed = [dict(one) for one in cycles(6)]
        for one in drawn.sample(changed, 12):
            key = drawn.choice(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
            one[key] = {"correlation": drawn.choice(odd)} if drawn.random() < 0.1 else drawn.choice(odd)
        path = save([{k: v for k, v in one.items() if v != "absent"} for one in changed], tmp_path / "odd.json")
        try:
            recording = load(path)
        except SpantraceError as error:
            refused.append(str(error))
            continue
        trust(recording)
        assert (np.diff(recording.cycles.start) >= 0).all()
        assert (recording.spans.end >= recording.spans.start).all()
    assert all("no two cycles are found" in message for message in refused)
    assert len(refused) < 20
