"""The options of `record` that export what is recorded while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spantrace.live_export import LiveExport, Sink
    from spantrace.recording import Header, Recording

LARGEST_PORT = 65535

otlp_option = click.option(
    "--otlp", metavar="URL", help="Meanwhile send spans to an OpenTelemetry collector, by OTLP over HTTP."
)
prometheus_option = click.option(
    "--prometheus",
    metavar="[HOST]:PORT",
    help="Meanwhile serve histograms for Prometheus (HOST: 127.0.0.1).",
)


@contextmanager
def exporting(header: Header, otlp: str | None, prometheus: str | None) -> Iterator[LiveExport | None]:
    """What takes the frames of the recording with this header, None where nothing is to be exported.

    SpantraceError where an address is none, or a package is missing.
    """
    if otlp is None and prometheus is None:
        yield None
        return
    from contextlib import ExitStack

    from spantrace.live_export import LiveExport
    from spantrace.packages import extra

    with ExitStack() as opened:
        sinks: list[Sink] = []
        if prometheus is not None:
            with extra("prometheus", "--prometheus"):
                from spantrace.exporters.prometheus import Prometheus
            sinks.append(Prometheus(*_address(prometheus)))
            opened.callback(sinks[-1].close)
        if otlp is not None:
            with extra("otlp", "--otlp"):
                from spantrace.exporters.otlp import Otlp
            sinks.append(Otlp(otlp))
        opened.pop_all()
        with LiveExport(header, sinks) as live:
            yield live


def say_exported(live: LiveExport, recording: Recording) -> None:
    """Pass on what is left of the recording, and say how much of it was exported."""
    live.close(complete=True)
    for sentence in live.told(recording):
        click.echo(sentence, err=True)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) <= LARGEST_PORT:
        raise click.BadParameter(f"{text} is no [HOST]:PORT.", param_hint="--prometheus")
    return host.strip("[]") or "127.0.0.1", int(port)
