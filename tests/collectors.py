"""A collector of OpenTelemetry's spans that decodes what comes over HTTP, and can refuse it or not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Answers with `status`, or only once `released` where it is None; keeps the spans of what it took."""

    def __init__(self, status: int | None = 200) -> None:
        self.paths: list[str] = []
        self.resources: list[dict[str, Any]] = []
        self.spans: list[Any] = []
        self.released = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if status is None:
                    collector.released.wait(60)
                elif status == 200:
                    collector._take(self.path, body)
                self.send_response(status or 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def _take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)


@contextmanager
def collecting(status: int | None = 200) -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector(status)
    thread = threading.Thread(target=collector.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        collector.released.set()
        collector.server.shutdown()
        collector.server.server_close()
        thread.join()


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span or a resource, by name."""
    return {one.key: _value(one.value) for one in of.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
