"""Spans and histograms from a recording under way, read as others read them: by a collector, and over HTTP."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from actors import Cast
from collectors import attributes, collecting
from cpu_server.server import free_port
from journals import ENGINE, WORKER, sync_server
from prometheus_client.parser import text_string_to_metric_families
from streamed import S, Server
from test_control import until

from spantrace.capture import Capture, Until
from spantrace.cli.live_exports import exporting
from spantrace.cli.main import run
from spantrace.errors import SpantraceError
from spantrace.exporters import otlp, prometheus
from spantrace.exporters.layout import lanes_of, processes_of
from spantrace.exporters.otlp import Otlp
from spantrace.exporters.prometheus import Prometheus
from spantrace.journal import Journal
from spantrace.live_export import LiveExport, Sink
from spantrace.recording import Recording
from spantrace.settling import Settled
from spantrace.spans import SPAN_NAMES, Kind, Track

pytestmark = pytest.mark.timed

WALL = 1_700_000_000 * S
SERVER = Server(300, ranks=2)


def exported(server: Server, *sinks: Sink) -> list[str]:
    """Give these sinks all that a server sends, which settles at the end; what they say of it."""
    live = LiveExport(server.header, sinks, interval=60)
    for _, frame in server.frames():
        live.take(frame)
    live.close(complete=True)
    return live.told(server.joined())


def scraped(port: int) -> dict[tuple[str, ...], float]:
    """Counts and sums by name and labels, as Prometheus's own parser reads them."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(one.name, *sorted(one.labels.values())): one.value for one in samples if "le" not in one.labels}


class Gate:
    """Lets a test look before what it is behind is closed."""

    def __init__(self, look: Any) -> None:
        self._look = look

    def take(self, settled: Settled) -> None: ...

    def close(self) -> None:
        self._look()

    def told(self, recording: Recording) -> str:
        return ""


def test_a_collector_gets_every_span_of_every_cycle() -> None:
    with collecting() as collector:
        told = exported(SERVER, Otlp(collector.url))
    whole = SERVER.joined()
    assert told == [f"OTLP: the collector at {collector.url[7:]} took {len(whole.spans.name):,} of "
                    f"{len(whole.spans.name):,} spans"]  # fmt: skip
    assert set(collector.paths) == {"/v1/traces"}
    wanted = Counter(
        (SPAN_NAMES[name], Track(track).name.lower(), processes_of(whole)[lanes_of(whole)[lane].process].rank,
         start + WALL, end + WALL)
        for name, track, lane, start, end in zip(whole.spans.name, whole.spans.track, whole.spans.lane,
                                                 whole.spans.start.tolist(), whole.spans.end.tolist(), strict=True)
    )  # fmt: skip
    found = Counter(
        (
            span.name,
            told["spantrace.track"],
            told.get("spantrace.rank"),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
        )
        for span in collector.spans
        for told in [attributes(span)]
    )
    assert found == wanted


def test_spans_come_while_the_server_runs() -> None:
    begun = time.perf_counter_ns() - 4 * S
    server, early = Server(100, late=S, begin=begun), 0
    with collecting() as collector:
        live = LiveExport(server.header, [Otlp(collector.url)], interval=0.1)
        for at, frame in server.frames():
            time.sleep(max(0, at - time.perf_counter_ns()) / 1e9)
            early = len(collector.spans)
            live.take(frame)
        live.close(complete=True)
    whole = len(server.joined().spans.name)
    assert 0 < early < len(collector.spans) == whole


def test_each_cycle_is_a_trace_with_its_spans_inside() -> None:
    with collecting() as collector:
        exported(SERVER, Otlp(collector.url))
    traces: dict[bytes, list[Any]] = {}
    for span in collector.spans:
        traces.setdefault(span.trace_id, []).append(span)
    assert len(traces) == 300
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)
    for spans in traces.values():
        (root,) = [span for span in spans if not span.parent_span_id]
        assert root.name == "cycle"
        assert len({attributes(span)["spantrace.step"] for span in spans}) == 1
        names = {span.span_id: (span.name, attributes(span)["spantrace.track"]) for span in spans}
        around = {span.name: names[span.parent_span_id] for span in spans if span is not root}
        assert around.pop("target.forward.logits") == ("target.forward", "gpu")
        assert set(around.values()) == {("cycle", "host")}
    first = attributes(min(collector.spans, key=lambda span: span.start_time_unix_nano))
    assert first["spantrace.kind"] == "WARMUP"
    assert first["spantrace.drafted"] == [1, 1]
    assert first["spantrace.accepted"] == [1, 0]


def test_a_span_is_inside_the_one_around_it() -> None:
    server = Server(0)
    server.engine.row("cycle", 100 * S, 100 * S + 900).row("schedule", 100 * S + 1, 100 * S + 2).schedule(1, 100 * S)
    server.engine.row("output.update", 100 * S + 801, 100 * S + 802).update(1, 100 * S + 800, 2, 1)
    server.workers[0].execute(1, 100 * S + 10)
    for name, begin, end in (("target.metadata", 100, 200), ("target.metadata.mamba", 110, 150), ("sample", 300, 301)):
        server.workers[0].row(name, 100 * S + begin, 100 * S + end)
    with collecting() as collector:
        exported(server, Otlp(collector.url))
    names = {span.span_id: span.name for span in collector.spans}
    inside = {span.name: names.get(span.parent_span_id) for span in collector.spans}
    assert inside["target.metadata.mamba"] == "target.metadata"
    assert inside["target.metadata"] == inside["sample"] == "cycle"
    assert inside["cycle"] is None


def test_only_what_may_be_shared_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "/home/me/secret-key"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"key={secret}")
    server = Server(20)
    server.header["server"] |= {"model": f"{secret}/model-8b", "args": secret, "url": secret}
    with collecting() as collector:
        exported(server, Otlp(collector.url))
    assert collector.resources[0] == {"service.name": "spantrace", "spantrace.model": "model-8b"}
    assert "secret" not in str(collector.spans)


def test_prometheus_counts_every_span_and_period() -> None:
    port, seen, whole = free_port(), {}, SERVER.joined()
    exported(SERVER, Gate(lambda: seen.update(scraped(port))), Prometheus("127.0.0.1", port))
    spans, periods = whole.spans, whole.cycles.period
    counted = {key[1:]: value for key, value in seen.items() if key[0] == "spantrace_span_seconds_count"}
    assert sum(counted.values()) == len(spans.name)
    at = whole.cycles.kind[spans.cycle] == Kind.STEADY
    steady = [(SPAN_NAMES[name], track) for name, track in zip(spans.name[at], spans.track[at], strict=True)]
    forwards = [value for key, value in counted.items() if {"target.forward", "gpu", "steady"} <= set(key)]
    assert len(forwards) == 2, "of each rank"
    assert sum(forwards) == Counter(steady)["target.forward", Track.GPU]
    kinds = {kind: whole.cycles.kind == Kind[kind.upper()] for kind in ("warmup", "steady", "after_idle")}
    for kind, at in kinds.items():
        assert seen["spantrace_cycle_seconds_count", kind] == (periods[at] >= 0).sum()
    total = periods[kinds["steady"] & (periods >= 0)].sum() / 1e9
    assert seen["spantrace_cycle_seconds_sum", "steady"] == pytest.approx(total)


def test_buckets_are_in_order_and_hold_what_is_below() -> None:
    port, text = free_port(), []
    url = f"http://127.0.0.1:{port}/metrics"
    look = Gate(lambda: text.append(urllib.request.urlopen(url, timeout=10).read().decode()))
    exported(SERVER, look, Prometheus("127.0.0.1", port))
    rows = re.findall(r'spantrace_cycle_seconds_bucket\{kind="steady",le="([^"]+)"\} (\S+)', text[0])
    assert [float(le) for le, _ in rows] == sorted({*prometheus.BUCKETS, float("inf")})
    assert max(len(le) for le, _ in rows) <= len("2.5e-06")
    counts = {float(le): float(count) for le, count in rows}
    assert counts[0.01] == 0 < counts[0.025] == counts[float("inf")], "a cycle takes 20 ms"


@contextmanager
def dead_end(kind: str) -> Iterator[str]:
    """The address of a collector of this kind."""
    if kind == "nobody":
        yield f"http://127.0.0.1:{free_port()}"
        return
    with collecting({"refuses": 500, "knows nothing": 404, "silent": None}[kind]) as collector:
        yield collector.url


@pytest.mark.parametrize("kind", ["nobody", "refuses", "knows nothing", "silent"])
def test_a_dead_collector_stops_and_slows_nothing(
    kind: str, cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("TIMEOUT_S", "CLOSE_S"):
        monkeypatch.setattr(otlp, name, 0.5)
    cast(*sync_server(turns=30))
    header = {**SERVER.header, "options": {}}
    with dead_end(kind) as url, exporting(header, url, None) as live:
        assert live is not None
        with Journal(tmp_path / "a.spantrace", header, follower=live.take) as journal:
            began = time.monotonic()
            capture = Capture(tmp_path / "sockets", {WORKER: "worker", ENGINE: "engine"}, journal, {})
            with capture:
                capture.run(Until(cycles=30))
                assert capture.stop()
            recording = journal.finish()
            assert time.monotonic() - began < 3
        live.close(complete=True)
        assert time.monotonic() - began < 8
    assert len(recording.cycles) == 30
    sentence = f"took 0 of {len(recording.spans.name):,} spans; the recording holds all of them"
    assert live.told(recording) == [f"OTLP: the collector at {url[7:]} {sentence}"]
    assert capfd.readouterr() == ("", "")
    assert not [one for one in threading.enumerate() if one.name == "spantrace-export"]


def test_what_a_slow_collector_does_not_take_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TIMEOUT_S", 0.3), ("CLOSE_S", 0.3), ("BATCH", 10), ("MOST_BATCHES", 3)):
        monkeypatch.setattr(otlp, name, value)
    with collecting(None) as collector:
        sender = Otlp(collector.url)
        told = exported(SERVER, sender)
    assert sender._batches.qsize() <= 3
    assert " took 0 of " in told[0]


def test_a_failing_sink_ends_the_export_and_says_so() -> None:
    class Broken(Gate):
        def take(self, settled: Settled) -> None:
            raise RuntimeError("no")

    frames = [frame for _, frame in SERVER.frames()]
    live = LiveExport(SERVER.header, [Broken(lambda: None)], interval=0.05)
    for _ in range(2):
        for frame in frames:
            live.take(frame)
        assert until(lambda: not (live._settling._arrived or live._settling._slices))
    live.close(complete=True)
    assert live.told(SERVER.joined())[0] == "the live export ended early: RuntimeError: no; please report it"


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://a:1", "http://", "http://a:99999", "http://[", ""])
def test_no_address_of_a_collector(url: str) -> None:
    with pytest.raises(SpantraceError, match="is no address of a collector"), exporting(SERVER.header, url, None):
        pass


def test_an_address_keeps_its_path() -> None:
    assert otlp.endpoint("http://a:4318/") == otlp.endpoint("http://a:4318") == "http://a:4318/v1/traces"
    assert otlp.endpoint("https://a/custom?x=1") == "https://a/custom?x=1"


def test_a_port_that_is_taken_is_one_sentence_and_ends_nothing_else() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SpantraceError, match=f"cannot serve Prometheus at 127.0.0.1:{port}: .*another port"):
            Prometheus("127.0.0.1", port)


def test_an_address_that_is_none_frees_the_port_again() -> None:
    port = free_port()
    with pytest.raises(SpantraceError), exporting(SERVER.header, "nowhere", f":{port}"):
        pass
    Prometheus("127.0.0.1", port).close()


@pytest.mark.parametrize("place", ["x:y", ":0", ":70000", "a:"])
def test_no_place_for_prometheus(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    from click import BadParameter

    with pytest.raises(BadParameter, match=r"is no \[HOST\]:PORT"), exporting(SERVER.header, None, place):
        pass


@pytest.mark.parametrize(
    ("package", "extra", "options"),
    [("opentelemetry", "otlp", ("http://a", None)), ("prometheus_client", "prometheus", (None, ":1"))],
)
def test_a_missing_package_is_named(
    package: str, extra: str, options: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"spantrace.exporters.{extra}")
    monkeypatch.setitem(sys.modules, package, None)
    sentence = rf"--{extra} needs {package}; pip install 'spantrace\[{extra}\]'"
    with pytest.raises(SpantraceError, match=sentence), exporting(SERVER.header, *options):
        pass


def test_nothing_is_imported_or_started_unasked() -> None:
    program = (
        "import sys, threading\n"
        "from spantrace.cli.live_exports import exporting\n"
        "with exporting({'options': {}}, None, None) as live:\n"
        "    assert live is None and threading.active_count() == 1\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus', 'spantrace.live_e'))])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_sampling_exports_nothing_live(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["record", "1", "--sample", "--otlp", "http://a"]) == 2
    assert "leave out --otlp" in capsys.readouterr().err
