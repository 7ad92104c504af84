"""The collector that spans are sent to: the home of OpenTelemetry's SDK, which this module loads.

Address, headers, timeout, sampler, resource and limits come from the SDK's own environment variables.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace.status import Status, StatusCode

from studies.redact import redact
from studies.tracing import settings
from studies.tracing.span import Span
from studies.tracing.trace_context import TraceContext

SERVICE = "automl"
"""Name of the service, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has another one."""
BATCH = 512
"""Number of spans in a request, which is what collectors are used to."""
_UNNAMED = "unknown_service"
_EXPORTERS_LOG = "opentelemetry.exporter"
_NANO = 1_000_000_000


class CollectorError(Exception):
    """The collector took no spans; one line, which names it and what it said."""


class Collector:
    """Sends spans, one request after the other, and says whether they were taken."""

    def __init__(self) -> None:
        self._ids, self._ended = _GivenIds(), _Ended()
        self._provider = TracerProvider(resource=_resource(), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(self._ended)
        self._tracer = self._provider.get_tracer(SERVICE)
        self._exporter = OTLPSpanExporter()

    def samples(self, trace_id: int, name: str) -> bool:
        """Whether a trace that begins with a span of this name is recorded."""
        return bool(self._provider.sampler.should_sample(None, trace_id, name).decision.is_sampled())

    def send(self, spans: Sequence[Span]) -> None:
        """Send spans; blocks for as long as the timeout of the exporter allows for each request.

        Args:
            spans: Spans that have ended. Those of traces that are not recorded are left out.

        Raises:
            CollectorError: It did not take them. Sending them again makes no second span, since their ids are the same.
        """
        for span in spans:
            self._record(span)
        recorded = self._ended.take()
        for start in range(0, len(recorded), BATCH):
            self._export(recorded[start : start + BATCH])

    def try_out(self) -> None:
        """Send a request without spans.

        Raises:
            CollectorError: The collector did not take it.
        """
        self._export([])

    def close(self) -> None:
        """End a request that is under way, and give the connection back."""
        self._exporter.shutdown()
        self._provider.shutdown()

    def _record(self, span: Span) -> None:
        self._ids.next_are(span.context)
        recording = self._tracer.start_span(
            span.name,
            context=_context_of(span.parent),
            attributes=dict(span.attributes),
            start_time=round(span.started_at * _NANO),
        )
        end = round(max(span.ended_at, span.started_at) * _NANO)
        if span.error:
            recording.set_status(Status(StatusCode.ERROR, span.error))
            told = {"exception.message": span.error}
            if span.traceback:
                told["exception.stacktrace"] = span.traceback
            recording.add_event("exception", told, timestamp=end)
        recording.end(end_time=end)

    def _export(self, recorded: Sequence[ReadableSpan]) -> None:
        with _heard() as said:
            result = self._exporter.export(recorded)
        if result is not SpanExportResult.SUCCESS:
            why = said[0] if said else "it does not say why"
            raise CollectorError(redact(f"the collector {settings.endpoint()} took no spans: {why}"))


class _GivenIds(IdGenerator):
    """Gives the next span the ids that it was told."""

    def __init__(self) -> None:
        self._next = TraceContext(trace_id=1, span_id=1)

    def next_are(self, context: TraceContext) -> None:
        """Note the ids of the span that is recorded next."""
        self._next = context

    def generate_span_id(self) -> int:
        """Return the id of the span."""
        return self._next.span_id

    def generate_trace_id(self) -> int:
        """Return the id of its trace, which is asked for where a trace begins."""
        return self._next.trace_id


class _Ended(SpanProcessor):
    """Keeps the spans that are recorded, until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span."""
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """Return what was kept, and forget it."""
        taken, self._spans = self._spans, []
        return taken


def _resource() -> Resource:
    found = Resource.create()
    is_unnamed = str(found.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED)
    return found.merge(Resource({SERVICE_NAME: SERVICE})) if is_unnamed else found


def _context_of(parent: TraceContext | None) -> Context:
    """The SDK's form of a parent; an empty one keeps spans of the process's own out."""
    if parent is None:
        return Context()
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if parent.is_sampled else trace.TraceFlags.DEFAULT)
    named = trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(named), Context())


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What the exporter logs in the block: it says there why it failed, a line for each try, and nowhere else."""
    said: list[str] = []
    log, handler = logging.getLogger(_EXPORTERS_LOG), logging.Handler()
    handler.emit = lambda record: said.append(_why(record))  # type: ignore[method-assign]
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


def _why(record: logging.LogRecord) -> str:
    """The cause in a line of the log; the line itself has addresses of objects and random pauses, which differ."""
    parts = record.args if isinstance(record.args, tuple) else ()
    error = next((one for one in parts if isinstance(one, BaseException)), None)
    if error is None:
        said = " ".join(record.getMessage().split())
        return "no answer in time" if "due to timeout" in said else said
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
