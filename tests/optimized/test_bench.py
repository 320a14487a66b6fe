"""`spantrace bench`: the contests of every folder, timing in turns, and the table."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from analyzers.statistics import median_estimate

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from optimized import timing  # noqa: E402
from optimized.cases import Contest  # noqa: E402
from optimized.judging import TOLERANCES  # noqa: E402
from optimized.optimization import Optimization  # noqa: E402
from optimized.reference_cycle.acceptance import Verdict  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from optimized.reference_cycle.target import TargetOutput  # noqa: E402
from optimized.timing import copy_bandwidth, race  # noqa: E402
from spantrace.cli.bench import document  # noqa: E402
from spantrace.cli.contests import Measured  # noqa: E402
from spantrace.cli.main import run  # noqa: E402
from spantrace.errors import EXIT_BAD_INPUT, EXIT_NOT_COMPARABLE  # noqa: E402
from spantrace.terminal import lines  # noqa: E402

pytestmark = pytest.mark.timed

TIMED = {name: item for name, item in optimized.discover().items() if item.contest is not None}
HERE = {name: item for name, item in TIMED.items() if not item.unmet()}
SETTINGS = Settings(draft_length=3, batch=3, context=40)
SMALL = ("--context", "40", "--draft-length", "3", "--repeats", "6", "--device", "cpu")
each = pytest.mark.parametrize("item", TIMED.values(), ids=list(TIMED))
Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch


def contest_of(item: Optimization, settings: Settings = SETTINGS) -> Contest:
    assert item.contest is not None
    return item.contest(settings)


# The contests


def outcome(side: Callable[[], Any], contest: Contest) -> list[Any]:
    """What one side leaves behind: what it returns, or else what it writes to."""
    result = side()
    if isinstance(result, Verdict):
        result = [result.accepted, result.counts, result.newest]
    if isinstance(result, TargetOutput):
        result = [part[:, : SETTINGS.speculative + 1] for part in (result.logits, result.taps)]
    return [part.clone() for part in (contest.written if result is None else result)]


@each
def test_both_sides_of_a_contest_do_the_same_work_each_time(item: Optimization) -> None:
    contest = contest_of(item)
    runs = [outcome(side, contest) for side in (contest.stock, contest.fast, contest.fast, contest.stock)]
    for others in runs[1:]:
        for one, other in zip(runs[0], others, strict=True):
            torch.testing.assert_close(other, one, rtol=TOLERANCES["float32"], atol=TOLERANCES["float32"])
    assert all(float(part.float().abs().sum()) > 0 for part in runs[0])


@each
@pytest.mark.parametrize("changes", [{"batch": 1}, {"draft_length": 1}, {"context": 5}, {"drafter": "dspark"}], ids=str)
@pytest.mark.parametrize("geometry", ["tiny", "nemotron-h"])
def test_a_contest_can_be_held_at_other_sizes(item: Optimization, changes: dict[str, Any], geometry: str) -> None:
    shape = GEOMETRIES[geometry].scaled(layers=4, hidden=64, vocab=90)
    contest = contest_of(item, Settings(shape, **{"draft_length": 3, "batch": 2, "context": 24, **changes}))
    contest.stock()
    contest.fast()
    assert 0 < contest.moved() < 1 << 30


def test_the_bytes_moved_are_those_of_inputs_and_results() -> None:
    batch, rows, block, hidden = 3, 4, 4, SETTINGS.geometry.hidden
    read = batch * rows * 4 + batch * 4 + 2 * batch * 8 + (batch + 1) * hidden * 4
    written = 2 * batch * 8 + batch * block * 8 + batch * rows * 8 + batch * block * hidden * 4
    assert contest_of(TIMED["query-build"]).moved() == read + written


@each
def test_more_requests_move_more_bytes(item: Optimization) -> None:
    one, four = (contest_of(item, Settings(context=40, batch=batch)).moved() for batch in (1, 4))
    assert one < four < 4 * one + 1


# Timing


def test_the_sides_take_turns_and_each_begins_as_often(monkeypatch: Patch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 0.0)
    order: list[str] = []
    found = race(Contest("", lambda: order.append("s"), lambda: order.append("f"), (), ()), "cpu", 10)
    blocks = [(side, len(list(calls))) for side, calls in groupby(order)]
    sample = blocks[0][1]
    assert "".join(side for side, _ in blocks) == "sf" + "sf" * 5 + "s"
    assert [calls // sample for _, calls in blocks] == [1, 1, 1, *[2] * 9, 1]
    assert len(found.stock) == len(found.fast) == 10
    assert (found.captured, found.why_not) == (False, None)


def test_a_sample_is_the_time_of_a_call() -> None:
    began = time.perf_counter()
    found = race(Contest("", lambda: time.sleep(0.008), lambda: time.sleep(0.004), (), ()), "cpu", 6)
    passed = time.perf_counter() - began
    assert min(found.stock) >= 0.008
    assert min(found.fast) >= 0.004
    assert sum(found.stock) + sum(found.fast) <= passed


def test_short_calls_fill_a_sample() -> None:
    calls = [0]

    def count() -> None:
        calls[0] += 1

    found = race(Contest("", count, lambda: time.sleep(0.001), (), ()), "cpu", 6)
    assert calls[0] > 6 * 1000
    assert 0 < max(found.stock) < 1e-4


def test_copy_bandwidth_is_that_of_a_copy_timed_here() -> None:
    source = torch.ones(timing.COPIED_BYTES["cpu"], dtype=torch.uint8)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    assert 0.2 < copy_bandwidth("cpu", 5) / (2 * source.nbytes / sorted(seconds)[2]) < 5


# The command


def bench(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = run(["bench", *SMALL, *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_bench_prints_medians_intervals_bytes_and_the_floor(capsys: Capture) -> None:
    code, out, err = bench(capsys, ",".join(HERE), "--batch", "1,3")
    assert (code, err) == (0, "")
    assert "| tiny, 4 layers, K=3, context 40" in " ".join(out.split())
    assert re.search(r"^FASTER in \d of 6  context-kv-cache ", out, re.MULTILINE)
    for name in HERE:
        assert out.count(f"\n{name} ") == 2
    assert "timed as plain calls, stock (the code that is replaced) and fast in turns, 6 pairs, medians" in " ".join(
        out.split()
    )
    assert re.search(r"^floor +bytes that must be moved, at a large copy's [\d.]+ GB/s", out, re.MULTILINE)


def test_the_figures_of_a_row_fit_together(capsys: Capture) -> None:
    code, out, _ = bench(capsys, *HERE, "--batch", "3", "--format", "json")
    said = json.loads(out)
    assert code == 0
    assert (said["device"], said["dtype"], said["geometry"], said["context"]) == ("cpu", "float32", "tiny", 40)
    assert [one["optimization"] for one in said["measured"]] == list(HERE)
    for one in said["measured"]:
        assert one["moved"] == contest_of(TIMED[one["optimization"]]).moved()
        assert one["floor"] == pytest.approx(one["moved"] / said["copy_bandwidth"] * 1e6)
        for side in ("stock", "fast", "speedup"):
            assert one[side]["low"] <= one[side]["value"] <= one[side]["high"]
            assert one[side]["n"] == 6
        assert one["stock"]["low"] / one["fast"]["high"] <= one["speedup"]["high"]
        assert one["speedup"]["low"] <= one["stock"]["high"] / one["fast"]["low"]
        assert (one["timed"], one["why_not_captured"]) == ("calls", None)
    _, out, _ = bench(capsys, "query-build", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert float(row["of_floor"]) == pytest.approx(float(row["fast_us"]) / float(row["floor_us"]), rel=1e-6)


def measured(stock: list[float], fast: list[float]) -> Measured:
    ratios = [one / other for one, other in zip(stock, fast, strict=True)]
    found = [median_estimate(np.array(values)) for values in (stock, fast, ratios)]
    assert None not in found
    return Measured("it", "work", 8, *found, 100, 0.1, "calls", None)  # type: ignore[arg-type]


def test_what_is_slower_is_not_called_faster() -> None:
    said = document([measured([10.0, 10.1, 10.2] * 2, [30.1, 30.0, 30.2] * 2)], SETTINGS, 1e9, {})
    assert said.headline is not None
    assert (said.headline.word, said.headline.sentences) == ("FASTER in 0 of 1", ("it 0.34x.",))


def test_the_interval_judges_and_samples_that_scatter_are_doubted() -> None:
    steady = measured([10.0, 10.1, 10.2, 10.0, 10.1, 10.2], [5.0, 5.1, 5.0, 5.1, 5.0, 5.1])
    equal = measured([10.0, 10.1, 10.2, 10.0, 10.1, 10.2], [10.1, 10.0, 10.1, 10.2, 10.0, 10.1])
    noisy = measured([10.0, 10.1, 90.0, 10.0, 80.1, 70.0], [5.0, 5.1, 5.0, 5.1, 5.0, 5.1])
    assert [(one.shown, one.noisy) for one in (steady, equal, noisy)] == [(True, False), (False, False), (True, True)]
    for one, word, doubts in ((steady, "1 of 1", 0), (equal, "0 of 1", 0), (noisy, "1 of 1", 1)):
        said = document([one], SETTINGS, 1e9, {})
        assert said.headline is not None
        assert said.headline.word == f"FASTER in {word}"
        assert [fact.label for fact in said.facts].count("doubt") == doubts
        ending = "x." if one is steady else "x (noisy)." if one is noisy else "x (not shown)."
        assert said.headline.sentences[0].endswith(ending)


def test_the_table_fits_into_80_columns() -> None:
    known = {"optimization": "context-kv-cache", "floor": 1234.5}
    wide = replace(measured([12345.6, 12345.7] * 3, [1234.5, 1234.6] * 3), **known)
    said = document([wide], SETTINGS, 1e9, {})
    assert max(len(line.plain) for line in lines(said, 80, bars=False, cut=True)) <= 80
    assert any("95% interval" in line.plain for line in lines(said, 120, bars=False, cut=True))


def test_what_was_timed_from_the_host_is_marked_and_says_why() -> None:
    one = replace(measured([10.0] * 6, [5.0] * 6), timed="host", why_not_captured="it waits")
    said = document([one], SETTINGS, 1e9, {})
    assert said.table.rows[0].label == "it  (host)"
    assert ("host", ("it cannot be captured: it waits",)) in [(fact.label, fact.parts) for fact in said.facts]


def test_what_has_no_contest_is_named_and_alone_is_an_error(capsys: Capture, monkeypatch: Patch) -> None:
    found = {**TIMED, "other": replace(TIMED["query-build"], id="other", contest=None)}
    monkeypatch.setattr(optimized, "discover", lambda: found)
    said = document([measured([10.0] * 6, [5.0] * 6)], SETTINGS, 1e9, {"other": "it declares nothing to be timed on"})
    assert (said.facts[-1].label, said.facts[-1].parts) == ("not timed", ("other: it declares nothing to be timed on",))
    _, out, err = bench(capsys, "query-build", "other", "--format", "csv")
    assert [row["optimization"] for row in csv.DictReader(io.StringIO(out))] == ["query-build"]
    assert "spantrace: not timed: other: it declares nothing to be timed on\n" in err
    code, out, err = bench(capsys, "other")
    assert (code, out) == (EXIT_NOT_COMPARABLE, "")
    assert err == "spantrace: there is nothing to time: other: it declares nothing to be timed on\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "no optimization is called 'nonsense'; spantrace optimizations lists them all"),
        (["--batch", "8,"], "'8,' is not a list of numbers from 1 to 65536, such as 1,8,32"),
        (["--batch", "0"], "'0' is not a list of numbers from 1"),
        (["--batch", "²"], "'²' is not a list of numbers from 1"),
        (["--batch", "100000000000000"], "'100000000000000' is not a list of numbers from 1"),
        (["--batch", "9" * 5000], "is not a list of numbers from 1"),
        (["--context", "31"], "spantrace: a context of 31 is too small to measure K = 3; 32 or more are needed"),
        (["--context", "2048", "--draft-length", "1024"], "too small to measure K = 1024; 8200 or more are needed"),
        (["--geometry", "huge"], "'huge' is not one of 'tiny', 'qwen3-8b', "),
        (["--repeats", "5"], "5 is not in the range 6<=x<=10000"),
        (["--batch", "65536", "--context", str(1 << 24)], "B are free; make it smaller with --layers"),
        (["query-build", "--batch", "65536", "--context", str(1 << 24)], "tiny in float32 needs about "),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: list[str], sentence: str, capsys: Capture) -> None:
    code, out, err = bench(capsys, *arguments)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert sentence in err
    assert err.count("\n") == 1
