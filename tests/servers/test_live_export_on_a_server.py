"""`spantrace record --otlp --prometheus` of a live server, read by a collector and by a scraper while it runs."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from collectors import collecting
from conftest import USUAL
from cpu_server.server import free_port
from live import MANY, LiveRecording, assert_clean, wait_until
from prometheus_client.parser import text_string_to_metric_families

from spantrace.loading import load
from spantrace.spans import SPAN_NAMES

if TYPE_CHECKING:
    from conftest import Serve
    from cpu_server import CpuServer

    from tests.conftest import Cli


@pytest.fixture(scope="module")
def server(serve: Serve) -> CpuServer:
    """The usual server."""
    return serve(**USUAL)


@contextmanager
def recording(server: CpuServer, path: Path, *arguments: str) -> Iterator[LiveRecording]:
    """A recording that is ended within the block; it is killed where that fails."""
    running = LiveRecording(server, path, *arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def observed(port: int) -> float:
    """How many spans the histograms hold."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == "spantrace_span_seconds_count")


@pytest.mark.timed
def test_spans_and_histograms_come_while_a_server_is_recorded(server: CpuServer, tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "a.spantrace"
    with collecting() as collector, server.load(1):
        options = ("--otlp", collector.url, "--prometheus", f":{port}")
        with recording(server, path, *MANY, *options) as running:
            running.armed()
            wait_until(lambda: observed(port) and collector.spans, "the first spans")
            seen = observed(port)
            wait_until(lambda: observed(port) > seen, "more spans")
            code, said = running.interrupt()
    assert code == 0, said
    whole = load(path)
    assert not whole.partial
    count, wall = len(whole.spans.name), whole.header["monotonic_to_realtime_ns"]
    assert f"OTLP: the collector at {collector.url[7:]} took {count:,} of {count:,} spans\n" in said
    assert f"Prometheus: {count:,} of {count:,} spans were served at 127.0.0.1:{port}\n" in said
    bounds = zip(whole.spans.name.tolist(), whole.spans.start.tolist(), whole.spans.end.tolist(), strict=True)
    wanted = Counter((SPAN_NAMES[name], start + wall, end + wall) for name, start, end in bounds)
    found = Counter((span.name, span.start_time_unix_nano, span.end_time_unix_nano) for span in collector.spans)
    assert found == wanted
    assert len({span.trace_id for span in collector.spans}) == len(whole.cycles)
    assert_clean(whole)


def test_without_a_collector_a_recording_is_as_ever(server: CpuServer, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "a.spantrace"
    nowhere = f"http://user:secret@127.0.0.1:{free_port()}"
    with server.load(2):
        told = cli("record", f":{server.port}", "--cycles", "200", "-o", str(path), "--otlp", nowhere)
    assert told.returncode == 0, told.stderr
    assert len(load(path).cycles) >= 200
    assert re.fullmatch(
        r"[\d,]+ cycles -> .*\nOTLP: the collector at 127.0.0.1:\d+ took 0 of [\d,]+ spans; .*\n", told.stderr
    ), told.stderr


@pytest.mark.parametrize(
    "options", [("--otlp", "nowhere"), ("--prometheus", "nowhere"), ("--prometheus", "no-such-host.invalid:9999")]
)
def test_an_address_that_is_none_is_one_sentence(
    options: tuple[str, str], server: CpuServer, cli: Cli, tmp_path: Path
) -> None:
    told = cli("record", f":{server.port}", "-o", str(tmp_path / "a.spantrace"), *options)
    assert told.returncode == 2
    assert told.stderr.startswith("spantrace: ")
    assert told.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
