"""Prometheus metrics of all workers, summed in PROMETHEUS_MULTIPROC_DIR, which `serve` sets first."""

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counters, gauges and histograms of one worker process."""

    def __init__(self) -> None:
        self._requests = Counter("automl_serve_requests", "Requests answered.", ["path", "status"])
        self._seconds = Histogram(
            "automl_serve_request_seconds", "Time from a request's head to its answer.", ["path"], buckets=_SECONDS
        )
        self._answers = Counter("automl_serve_rows", "Rows answered.", ["model"])
        self._batch_rows = Histogram("automl_serve_batch_rows", "Rows in one forward pass.", ["model"], buckets=_ROWS)
        self._model_seconds = Histogram(
            "automl_serve_model_seconds", "Time of a batch in the model.", ["model"], buckets=_SECONDS
        )
        self._waiting = Gauge("automl_serve_waiting_rows", "Rows that wait.", multiprocess_mode="livesum")
        self._loaded = Gauge(
            "automl_serve_model_loaded", "Workers that have the model loaded.", ["model"], multiprocess_mode="livesum"
        )
        self._loads = Counter("automl_serve_loads", "Attempts to load a model.", ["result"])
        self._request_counter = functools.cache(self._requests.labels)
        self._request_timer = functools.cache(self._seconds.labels)
        self._answer_counter = functools.cache(self._answers.labels)
        self._batch_observer = functools.cache(self._batch_rows.labels)
        self._model_timer = functools.cache(self._model_seconds.labels)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Record an answered request and its seconds."""
        self._request_counter(path, str(status)).inc()
        self._request_timer(path).observe(seconds)

    def ran(self, version: str, rows: int, seconds: float) -> None:
        """Record a predicted batch."""
        self._answer_counter(version).inc(rows)
        self._batch_observer(version).observe(rows)
        self._model_timer(version).observe(seconds)

    def waiting(self, rows: int) -> None:
        """Record the number of waiting rows."""
        self._waiting.set(rows)

    def loading_ended(self, *, succeeded: bool) -> None:
        """Record a successful or failed attempt to load models."""
        self._loads.labels("loaded" if succeeded else "failed").inc()

    def is_loaded(self, version: str, *, loaded: bool) -> None:
        """Record whether this worker has a model loaded."""
        self._loaded.labels(version).set(float(loaded))


def exposition() -> bytes:
    """Return the metrics of all workers in Prometheus' text format."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def worker_ended(pid: int, folder: str) -> None:
    """Delete an ended worker's gauges. Its counters stay."""
    mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
