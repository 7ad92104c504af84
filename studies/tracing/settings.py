"""Whether spans are sent, by the environment variables that OpenTelemetry has for it; imports nothing of it."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

from search_spaces.wording import install_command

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
CURE = install_command("otel")


def endpoint() -> str:
    """Address of the collector as it is set; empty if no spans are wanted."""
    is_off = _value("OTEL_SDK_DISABLED").lower() == "true" or _value("OTEL_TRACES_EXPORTER").lower() == "none"
    return "" if is_off else _first(ENDPOINTS)


def problem() -> str:
    """Why no spans can be sent although a collector is named, in one line; empty if they can, or none is named."""
    if not endpoint():
        return ""
    protocol = _first(PROTOCOLS)
    if protocol not in {"", PROTOCOL}:
        name = next(one for one in PROTOCOLS if _value(one))
        return f"no traces are sent: {name}: found {protocol}, allowed: {PROTOCOL}"
    if not _is_installed():
        name = next(one for one in ENDPOINTS if _value(one))
        return f"no traces are sent: {name} is set, but the extra is not installed: {CURE}"
    return ""


def are_wanted() -> bool:
    """Whether this process sends spans: a collector is named, and can be spoken to."""
    return bool(endpoint()) and not problem()


@functools.cache
def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _first(names: tuple[str, ...]) -> str:
    return next((found for name in names if (found := _value(name))), "")


def _value(name: str) -> str:
    return os.environ.get(name, "").strip()
