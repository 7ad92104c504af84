"""A process that sends spans from a thread waits for no collector, says once what is wrong, and ends in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from studies.tracing.span import Span
from studies.tracing.trace_context import TraceContext
from tests.support.collectors import TestedCollector
from tests.support.waiting import wait_until


def spans(*numbers: int) -> Callable[[], list[Span]]:
    return lambda: [
        Span(
            name="one", context=TraceContext(trace_id=5, span_id=number), parent=None, started_at=1.0, ended_at=2.0
        )
        for number in numbers
    ]  # fmt: skip


def make(tell: Callable[[str], None]):
    from studies.tracing.background import BackgroundSender
    from studies.tracing.collector import Collector

    return BackgroundSender(Collector(), tell)


def test_what_was_put_in_has_come_when_it_is_closed(received: TestedCollector) -> None:
    told: list[str] = []
    sender = make(told.append)
    for number in range(1, 6):
        sender.put(spans(number))
    sender.close()
    assert [one.span_id for one in received.spans] == [1, 2, 3, 4, 5]
    assert told == []


def test_a_collector_that_comes_back_gets_what_waited_and_one_line_was_said(
    received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.tracing import background

    monkeypatch.setattr(background, "BACKOFF_FIRST_SECONDS", 0.01)
    told: list[str] = []
    received.mood = "refuses"
    sender = make(told.append)
    sender.put(spans(1))
    wait_until(lambda: received.requests >= 4)
    sender.put(spans(2))
    received.mood = "takes"
    received.wait_for("one", 2)
    assert [one.span_id for one in received.spans] == [1, 2]
    assert len(told) == 1
    assert received.url in told[0]
    sender.close()


def test_what_waits_is_bounded_and_the_oldest_is_dropped(
    received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.tracing import background

    monkeypatch.setattr(background, "MOST_WAITING", 3)
    monkeypatch.setattr(background, "BACKOFF_FIRST_SECONDS", 0.05)
    received.mood = "refuses"
    sender = make(lambda _: None)
    for number in range(1, 7):
        before = received.requests
        sender.put(spans(number))
        while received.requests == before:
            time.sleep(0.01)
    received.mood = "takes"
    received.wait_for("one", 3)
    sender.close()
    assert [one.span_id for one in received.spans] == [4, 5, 6]


def test_a_span_that_cannot_be_made_is_dropped_and_the_next_one_comes(received: TestedCollector) -> None:
    told: list[str] = []
    sender = make(told.append)

    def wrong() -> list[Span]:
        raise KeyError("a job that was deleted")

    sender.put(wrong)
    sender.put(spans(2))
    sender.close()
    assert [one.span_id for one in received.spans] == [2]
    assert len(told) == 1
    assert "a job that was deleted" in told[0]


def test_the_end_does_not_wait_for_a_collector_that_hangs(
    received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.tracing import background

    monkeypatch.setattr(background, "FLUSH_SECONDS", 0.3)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    received.mood = "hangs"
    sender = make(lambda _: None)
    began = time.monotonic()
    sender.put(spans(1))
    sender.close()
    assert time.monotonic() - began < 1.5
    sender._thread.join()  # the next test's log is its own
