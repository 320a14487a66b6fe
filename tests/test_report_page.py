"""`spantrace report --html`: the median cycle, the page that shows it, and the file it lies in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import tostring

import numpy as np
import pytest
from recordings import cycles_of, header, make_recording, sampled, spans_of

from analyzers.co_saturation import gpu_busy, host_parts
from analyzers.median_cycle import Bar, median_cycle
from analyzers.per_cycle import STEADY
from spantrace.cli.main import run
from spantrace.cli.report import report
from spantrace.cli.timeline import timeline
from spantrace.errors import SpantraceError
from spantrace.files import written_whole
from spantrace.page import element, page
from spantrace.recording import Recording
from spantrace.spans import SPAN_ID, Kind, Track

HOST, GPU = Track.HOST, Track.GPU
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)> \"' & \x00\x1b[31m \ud800"
MS = 1_000_000


class Parsed(HTMLParser):
    """The tags with their attributes, and the text outside the style, of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = self.style = ""
        self.feed(text)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.text += data

    def of_class(self, name: str) -> Iterator[dict[str, str | None]]:
        """The attributes of the tags of a class."""
        return (given for _, given in self.tags if name in (given.get("class") or "").split())


def made_page(recording: Recording) -> Parsed:
    found = median_cycle(recording)
    assert found is not None
    return Parsed(page(report(recording, None, STEADY), "a page", timeline(found)))


def small() -> Recording:
    """Cycles of 10, 14, 12 and 13 ms; the GPU works on each from its middle into the next one."""
    starts = np.array([0, 10, 24, 36, 49]) * MS
    bounds = [(a, b - MS) for a, b in pairwise(starts.tolist())]
    rows: list[tuple[str, Track, int, int, int, int]] = []
    for index, (start, end) in enumerate(bounds):
        rows += [
            ("cycle", HOST, index, start, end, 0),
            ("schedule", HOST, index, start, start + MS, 0),
            ("target.metadata", HOST, index, start + 2 * MS, start + 5 * MS, 0),
            ("target.metadata.attention", HOST, index, start + 2 * MS, start + 3 * MS, 0),
            ("output.wait", HOST, index, start + 5 * MS, end, 0),
            ("output.emit", HOST, index, start + 4 * MS, start + 5 * MS, 1),
            ("target.forward", GPU, index, start + 6 * MS, start + 12 * MS, 2),
        ]
    lanes = [{"process": 0, "thread": name} for name in ("main", "Thread-2", "GPU stream")]
    about = header(lanes=lanes, processes=[{"role": "engine"}])
    return Recording(about, cycles_of(bounds, last_period=13 * MS), spans_of(rows))


def test_the_cycle_at_the_median_period_is_shown_as_it_lay_in_time() -> None:
    found = median_cycle(small())
    assert found is not None
    assert (found.index, found.among, found.typical, found.period, found.length) == (2, 4, 12.5, 12.0, 11.0)
    engine, thread, gpu = found.lanes
    assert [lane.name for lane in found.lanes] == ["engine", "engine, Thread-2", "GPU"]
    assert engine.bars == (
        Bar("schedule", 0, 0.0, 1.0, 0, False),
        Bar("target.metadata", 0, 2.0, 5.0, 0, False),
        Bar("target.metadata.attention", 1, 2.0, 3.0, 0, False),
        Bar("output.wait", 0, 5.0, 11.0, 0, True),
    )
    assert engine.gaps == ((1.0, 2.0), (11.0, 12.0))
    assert thread.bars == (Bar("output.emit", 0, 4.0, 5.0, 0, False),)
    assert thread.gaps == (), "that thread does no work of the cycle"
    assert gpu.bars == (Bar("target.forward", 0, 6.0, 12.0, 0, False),)
    assert gpu.gaps == ((0.0, 6.0),)


def test_the_time_in_which_a_traced_gpu_is_busy_is_no_gap() -> None:
    recording = small()
    recording.spans.name[recording.spans.track == GPU] = SPAN_ID["cycle"]
    recording.header["lanes"][2]["thread"] = "GPU kernels"
    found = median_cycle(recording)
    assert found is not None
    assert (found.lanes[2].name, found.lanes[2].gaps) == ("GPU kernels", ((0.0, 6.0),))
    titles = {str(given["title"]) for given in made_page(recording).of_class("plain") if "title" in given}
    assert titles == {"busy: 6.00 ms, from 6.000 to 12.000"}


def test_what_a_neighbour_does_in_the_cycle_is_in_it() -> None:
    recording = small()
    recording.cycles.kind[[1, 2, 3]] = Kind.PREFILL
    found = median_cycle(recording)
    assert found is not None
    assert found.index == 0
    recording.cycles.kind[:] = [Kind.PREFILL, Kind.STEADY, Kind.PREFILL, Kind.PREFILL]
    found = median_cycle(recording)
    assert found is not None
    assert found.lanes[-1].bars == (
        Bar("target.forward", 0, 0.0, 2.0, -1, False),
        Bar("target.forward", 0, 6.0, 12.0, 0, False),
    )


def test_gaps_are_what_the_analyzers_attribute_to_no_span() -> None:
    recording = make_recording(cycles=50)
    found = median_cycle(recording)
    assert found is not None
    parts = {name: values[found.index] / 1e6 for name, values in host_parts(recording, STEADY).items()}
    host, gpu = found.lanes
    assert sum(end - start for start, end in host.gaps) == pytest.approx(parts["unattributed"] + parts["between"])
    busy = gpu_busy(recording)
    assert busy is not None
    assert sum(end - start for start, end in gpu.gaps) == pytest.approx(found.period - busy[found.index] / 1e6)


def test_only_a_cycle_whose_spans_are_known_is_shown() -> None:
    recording = sampled(make_recording(cycles=200))
    found = median_cycle(recording)
    assert found is not None
    assert recording.cycles.detail[found.index]
    assert {bar.name for lane in found.lanes for bar in lane.bars} >= {"sample", "draft.forward"}
    recording.cycles.detail[:] = False
    assert median_cycle(recording) is None


def test_gpu_spans_that_touch_lie_side_by_side() -> None:
    """Their times are float32 of milliseconds: the end of one can lie after the next one's start."""
    recording = small()
    rows = recording.spans.track == GPU
    recording.spans.start[rows] -= 4 * MS + 100
    found = median_cycle(recording)
    assert found is not None
    assert {bar.depth for bar in found.lanes[-1].bars} == {0}


def test_the_page_shows_lanes_spans_waits_and_gaps_to_scale() -> None:
    parsed = made_page(small())
    assert len(list(parsed.of_class("lane"))) == 3
    bars = {str(given["title"]): str(given["style"]) for given in parsed.of_class("bar") if "title" in given}
    assert bars["target.metadata: 3.00 ms, from 2.000 to 5.000"].startswith("left: 16.667%; width: 25.000%; --row: 0")
    assert "--row: 1" in bars["target.metadata.attention: 1.00 ms, from 2.000 to 3.000"]
    assert "output.wait, a wait: 6.00 ms, from 5.000 to 11.000" in bars
    gaps = {str(given["title"]) for given in parsed.of_class("gap") if "title" in given}
    assert gaps >= {"idle: 6.00 ms, from 0.000 to 6.000", "in no span: 1.00 ms, from 1.000 to 2.000"}
    assert "between two cycles: 1.00 ms, from 11.000 to 12.000" in gaps
    assert "One real cycle, number 3 of the recording: of 4 whose spans are known" in parsed.text


def test_the_page_says_what_the_report_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = make_recording()
    recording.save(tmp_path / "a.spantrace")
    assert run(["report", str(tmp_path / "a.spantrace"), "--html", str(tmp_path / "a.html"), "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["co_saturation"]["verdict"] == "host-bound"
    assert re.fullmatch(rf"page -> {tmp_path}/a\.html \(\d+ kB\)\n", captured.err)
    parsed = Parsed((tmp_path / "a.html").read_text())
    document = report(recording, None, STEADY)
    assert document.headline is not None
    said = [*document.headline.sentences, *(part for fact in document.facts for part in fact.parts)]
    assert all(text in parsed.text for text in [document.headline.word, *said])
    assert all(row.label.strip() in parsed.text for row in document.table.rows)
    assert sum(tag == "tr" for tag, _ in parsed.tags) == len(document.table.rows) + 2


def test_a_page_without_a_gpu_has_no_lane_for_one() -> None:
    parsed = made_page(make_recording(kernels=None))
    assert "HOST ONLY" in parsed.text
    assert not list(parsed.of_class("gpu"))
    assert "GPU" not in parsed.text.partition("The median cycle")[2].partition("What is known")[0]


def test_the_page_needs_nothing_from_elsewhere_and_knows_the_dark() -> None:
    parsed = made_page(make_recording())
    assert {tag for tag, _ in parsed.tags} <= {
        "html", "head", "meta", "title", "style", "body", "main", "header", "section", "figure", "figcaption", "div",
        "span", "b", "i", "p", "h1", "h2", "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd",
    }  # fmt: skip
    assert not any({"src", "href", "srcset", "data", "action"} & given.keys() for _, given in parsed.tags)
    styles = parsed.style + " ".join(str(given.get("style")) for _, given in parsed.tags)
    assert not re.search(r"url\(|@import|@font-face|https?:", styles)
    assert "prefers-color-scheme: dark" in styles
    policy = next(given for _, given in parsed.tags if given.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_text_of_a_recording_is_only_text() -> None:
    server = {"model": HOSTILE, "drafter": HOSTILE, "vllm": HOSTILE, "runner": HOSTILE, "method": HOSTILE}
    recording = make_recording(
        cycles=100,
        server=server,
        created=HOSTILE,
        notes=[HOSTILE],
        gpu={"name": HOSTILE},
        optimizations=[{"id": HOSTILE, "hits": 1, "fallbacks": 1, "reasons": {HOSTILE: 1}}],
        processes=[{"role": HOSTILE, "missing": [HOSTILE], "first_error": HOSTILE, "hook_errors": 1}],
        lanes=[{"process": 0, "thread": HOSTILE}],
    )
    found = median_cycle(recording)
    assert found is not None
    text = page(report(recording, None, STEADY), HOSTILE, timeline(found))
    parsed, harmless = Parsed(text), made_page(make_recording(cycles=100))
    assert {tag for tag, _ in parsed.tags} <= {tag for tag, _ in harmless.tags}
    assert {name for _, given in parsed.tags for name in given} == {
        name for _, given in harmless.tags for name in given
    }
    assert "<script>alert(1)</script>" in parsed.text
    assert text.count("<style") == text.count("</style>") == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\ud800-\udfff]", parsed.text)
    text.encode()


def test_an_element_escapes_text_and_attributes() -> None:
    made = element("p", "a<b", element("i", "&"), "<script>", title='"><script>', class_="x")
    parsed = Parsed(tostring(made, encoding="unicode", method="html"))
    assert parsed.tags == [("p", {"title": '"><script>', "class": "x"}), ("i", {})]
    assert parsed.text == "a<b&<script>"


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, target = tmp_path / "a.spantrace", tmp_path / "a.html"
    make_recording(cycles=60).save(recording)
    target.write_text("mine")
    assert run(["report", str(recording), "--html", str(target)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"spantrace: {target} exists; choose another name or add --force\n"
    assert target.read_text() == "mine"
    assert run(["report", str(recording), "--html", str(target), "--force"]) == 0
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.spantrace"]


def test_a_page_never_replaces_its_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, base = tmp_path / "a.spantrace", tmp_path / "base.spantrace"
    make_recording(cycles=60).save(recording)
    make_recording(cycles=60, drafts=0, server={"method": None, "num_speculative_tokens": 0}).save(base)
    for target in (recording, base):
        before = target.read_bytes()
        arguments = ["report", str(recording), "--baseline", str(base), "--html", str(target), "--force"]
        assert run(arguments) == 2
        assert "is the recording itself; choose another name" in capsys.readouterr().err
        assert target.read_bytes() == before


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_recording(cycles=60).save(tmp_path / "a.spantrace")
    assert run(["report", str(tmp_path / "a.spantrace"), "--html", str(tmp_path / "no" / "a.html")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"spantrace: cannot write {tmp_path}/no/a.html: ")
    assert err.count("\n") == 1


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    with pytest.raises(SpantraceError, match=f"cannot write {path}: no room"):
        fail(path, OSError(28, "no room"))
    assert path.read_text() == "before"
    with pytest.raises(KeyError):
        fail(path, KeyError())
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert path.read_text() == "before"


def fail(path: Path, error: Exception) -> None:
    """Write a half of a file."""
    with written_whole(path) as file:
        file.write(b"half")
        raise error
