"""Spans are sent if and only if a collector is named, and OpenTelemetry's own variables say how."""

from __future__ import annotations

import pytest

from studies.tracing import settings

ADDRESS = "http://collector.example:4318"


def test_nothing_is_sent_unless_a_collector_is_named() -> None:
    assert not settings.are_wanted()
    assert settings.problem() == ""


@pytest.mark.parametrize("name", settings.ENDPOINTS)
def test_either_variable_names_the_collector(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, ADDRESS)
    assert settings.are_wanted()
    assert settings.endpoint() == ADDRESS


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_traces_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(settings.ENDPOINTS[1], ADDRESS)
    monkeypatch.setenv(name, value)
    assert not settings.are_wanted()
    assert settings.problem() == "", "that is what somebody wants"


def test_a_missing_extra_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.ENDPOINTS[1], ADDRESS)
    monkeypatch.setattr(settings, "_is_installed", lambda: False)
    assert not settings.are_wanted()
    assert settings.problem() == (
        "no traces are sent: OTEL_EXPORTER_OTLP_ENDPOINT is set, but the extra is not installed: "
        "pip install -c constraints.txt -e '.[otel]' in the checkout"
    )


def test_a_protocol_that_is_not_spoken_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.ENDPOINTS[1], ADDRESS)
    monkeypatch.setenv(settings.PROTOCOLS[1], "http/protobuf")
    assert settings.are_wanted()
    monkeypatch.setenv(settings.PROTOCOLS[0], "grpc")
    assert not settings.are_wanted()
    assert settings.problem() == (
        "no traces are sent: OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: found grpc, allowed: http/protobuf"
    )
