"""Spans reach a real collector as they were meant; one that does not take them is named in one line."""

from __future__ import annotations

import logging
import socket
import time

import pytest

from studies.tracing.span import Span
from studies.tracing.trace_context import TraceContext
from tests.support.collectors import ENDPOINT, TestedCollector

TRACE = 0x0AF7651916CD43DD8448EB211C80319C


def span(number: int = 1, parent: TraceContext | None = None, **more: object) -> Span:
    sampled = True if parent is None else parent.is_sampled
    context = TraceContext(trace_id=TRACE, span_id=number, is_sampled=sampled)
    return Span(**{"name": "one", "context": context, "parent": parent, "started_at": 10.0, "ended_at": 12.5, **more})


def make():  # the SDK is loaded by the tests that need it
    from studies.tracing.collector import Collector

    return Collector()


def test_a_span_comes_as_it_was_meant(received: TestedCollector) -> None:
    parent = TraceContext(trace_id=TRACE, span_id=7)
    collector = make()
    collector.send([
        span(1, parent, attributes={"count": 3, "usd": 0.5, "slots": (0, 1), "why": "all epochs", "done": True}),
        span(2, None, error="ValueError: no", traceback="Traceback ...\nValueError: no"),
    ])  # fmt: skip
    collector.close()
    child, root = received.spans
    assert (child.name, child.trace_id, child.span_id, child.parent_id) == ("one", TRACE, 1, 7)
    assert (child.start, child.end) == (10.0, 12.5)
    assert child.attributes == {"count": 3, "usd": 0.5, "slots": [0, 1], "why": "all epochs", "done": True}
    assert not child.is_error
    assert not child.events
    assert (root.trace_id, root.parent_id, root.is_error, root.message) == (TRACE, 0, True, "ValueError: no")
    (event,) = root.events
    assert event["name"] == "exception"
    assert event["exception.message"] == "ValueError: no"
    assert event["exception.stacktrace"].startswith("Traceback")
    assert child.resource["service.name"] == "automl"


def test_the_usual_variables_count(received: TestedCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "search-of-vision")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=vision")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    make().send([span()])
    assert received.spans[0].resource["service.name"] == "search-of-vision"
    assert received.spans[0].resource["team"] == "vision"
    assert received.headers["authorization"] == "Bearer abc"
    assert received.headers["content-encoding"] == "gzip"


def test_a_trace_that_is_not_recorded_is_not_sent(received: TestedCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = TraceContext(trace_id=TRACE, span_id=7, is_sampled=False)
    collector = make()
    assert collector.samples(TRACE, "one")
    collector.send([span(1, silent)])
    assert received.requests == 0
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.0")
    ratio = make()
    assert not ratio.samples(TRACE, "one")
    ratio.send([span(1)])
    assert received.requests == 0
    ratio.send([span(2, TraceContext(trace_id=TRACE, span_id=7))])
    assert [one.span_id for one in received.spans] == [2], "whoever calls has decided"


def test_many_spans_go_in_several_requests(received: TestedCollector) -> None:
    make().send([span(number) for number in range(1, 1201)])
    assert [one.span_id for one in received.spans] == list(range(1, 1201))
    assert received.requests == 3


def test_a_refusal_is_told_in_one_line(received: TestedCollector, caplog: pytest.LogCaptureFixture) -> None:
    from studies.tracing.collector import CollectorError

    received.mood = "refuses"
    collector = make()
    with pytest.raises(CollectorError) as caught:
        collector.send([span()])
    assert str(caught.value).startswith(f"the collector {received.url} took no spans: ")
    assert "500" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caplog.records == [], "the SDK says nothing besides"
    with pytest.raises(CollectorError):
        collector.try_out()
    received.mood = "takes"
    collector.try_out()
    collector.send([span()])
    assert len(received.spans) == 1
    assert logging.getLogger("opentelemetry.exporter").propagate


def test_a_collector_that_is_down_is_told_in_one_line_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    from studies.tracing.collector import CollectorError

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        monkeypatch.setenv(ENDPOINT, f"http://user:secret@127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        said = set()
        for _ in range(2):
            with pytest.raises(CollectorError) as caught:
                make().send([span()])
            said.add(str(caught.value))
    assert said == {f"the collector http://***@127.0.0.1:{port} took no spans: Connection refused"}, "once"


def test_a_collector_that_hangs_takes_no_longer_than_the_timeout(
    received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.tracing.collector import CollectorError

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    received.mood = "hangs"
    began = time.monotonic()
    with pytest.raises(CollectorError, match="took no spans: no answer in time"):
        make().send([span()])
    assert time.monotonic() - began < 5.0
