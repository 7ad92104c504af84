"""An OpenTelemetry collector for tests: takes spans over HTTP as OTLP has them, refuses them, or does not answer."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.support import optional

optional.module("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: E402 - the module before may be missing
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
Mood = Literal["takes", "refuses", "hangs"]


@dataclass(frozen=True, kw_only=True)
class Received:
    """A span as it came."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start: float
    end: float
    attributes: Mapping[str, Any]
    is_error: bool
    message: str
    events: tuple[Mapping[str, Any], ...]
    resource: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end - self.start


class TestedCollector:
    """Keeps what it is sent.

    Attributes:
        mood: What it does with the next request.
        spans: What it has taken, in the order in which it came.
        headers: Headers of the latest request, names in lower case.
        requests: Number of requests, refused ones included.
    """

    __test__ = False

    def __init__(self) -> None:
        self.mood: Mood = "takes"
        self.spans: list[Received] = []
        self.headers: dict[str, str] = {}
        self.requests = 0
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def named(self, name: str) -> list[Received]:
        """The spans of one name."""
        return [span for span in self.spans if span.name == name]

    def wait_for(self, name: str, number: int = 1, seconds: float = 60.0) -> list[Received]:
        """The spans of one name, once there are so many."""
        deadline = time.monotonic() + seconds
        while len(found := self.named(name)) < number:
            assert time.monotonic() < deadline, f"{[span.name for span in self.spans]} in {seconds} s"
            time.sleep(0.05)
        return found

    def close(self) -> None:
        """Answer no more."""
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def collector() -> Iterator[TestedCollector]:
    """A collector that ends with the block."""
    one = TestedCollector()
    try:
        yield one
    finally:
        one.close()


def _handler(of: TestedCollector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            of.requests += 1
            of.headers = {name.lower(): value for name, value in self.headers.items()}
            assert self.path == "/v1/traces"
            if of.mood == "hangs":
                of.released.wait(60.0)
                return
            if of.mood == "takes":
                of.spans += _spans(gzip.decompress(body) if of.headers.get("content-encoding") == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if of.mood == "takes" else 500)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


def _spans(body: bytes) -> list[Received]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return [
        Received(
            name=span.name,
            trace_id=int.from_bytes(span.trace_id, "big"),
            span_id=int.from_bytes(span.span_id, "big"),
            parent_id=int.from_bytes(span.parent_span_id, "big"),
            start=span.start_time_unix_nano / 1e9,
            end=span.end_time_unix_nano / 1e9,
            attributes=_plain(span.attributes),
            is_error=span.status.code == span.status.STATUS_CODE_ERROR,
            message=span.status.message,
            events=tuple({"name": one.name, **_plain(one.attributes)} for one in span.events),
            resource=_plain(one_resource.resource.attributes),
        )
        for one_resource in request.resource_spans
        for scope in one_resource.scope_spans
        for span in scope.spans
    ]


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
