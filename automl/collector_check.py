"""Whether a collector takes spans, for `automl doctor`: it is sent a request without any."""

from __future__ import annotations

from automl.findings import WrongError
from studies.redact import redact
from studies.tracing import settings

CURE = "start the collector, or mend OTEL_EXPORTER_OTLP_ENDPOINT and its companions"


def collector_found() -> str:
    """Return that the collector takes spans.

    Raises:
        WrongError: No spans can be sent, as a collector is named wrongly or the extra is not installed.
        CollectorError: It does not take them.
    """
    if problem := settings.problem():
        raise WrongError(problem)
    from studies.tracing.collector import Collector

    collector = Collector()
    try:
        collector.try_out()
    finally:
        collector.close()
    return f"the collector {redact(settings.endpoint())} takes spans"
