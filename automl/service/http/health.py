"""Endpoints for monitoring: liveness, readiness, and Prometheus metrics."""

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sqlalchemy.exc import DBAPIError

from automl.service.http.context import ServiceContext, service_of
from automl.service.http.routes_admin import admin_context
from studies.queueing.job_queue import JobQueue
from studies.records.records import NANO
from studies.storage.schema import tables as t
from studies.storage.schema.engine import clock_of
from studies.storage.study_store import Store
from studies.storage.views.cursors import VIEWS

WINDOW_SECONDS = 60.0  # seconds over which rates are measured
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
router = APIRouter()


class Metrics:
    """Figures for Prometheus: counted requests, and figures read from the store on demand."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        names = ("method", "path", "status")
        self._requests = Counter("automl_service_requests", "Number of requests.", names, registry=registry)
        self._seconds = Histogram(
            "automl_service_request_seconds", "Duration of requests.", ("path",), buckets=_BUCKETS, registry=registry
        )
        self._slots = Gauge("automl_slots", "Number of slots of living workers.", ("use",), registry=registry)
        self._workers = Gauge("automl_workers", "Number of living workers.", registry=registry)
        self._jobs = Gauge("automl_jobs", "Number of jobs.", ("state",), registry=registry)
        self._age = Gauge("automl_queue_age_seconds", "Age of the oldest waiting job.", registry=registry)
        self._epochs = Gauge("automl_epochs_per_second", "Epochs measured in the last minute.", registry=registry)
        self._usd = Gauge("automl_usd_per_hour", "Dollars charged in the last minute, per hour.", registry=registry)
        self._behind = Gauge("automl_view_commits_behind", "Commits that a view lacks.", ("view",), registry=registry)

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answered request and its seconds."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def exposition(self, store: Store) -> bytes:
        """Return all figures in Prometheus' text format."""
        self._look_at_queue(JobQueue(store))
        with store.snapshot() as connection:
            self._look_at_studies(connection)
        return generate_latest(self._registry)

    def _look_at_queue(self, queue: JobQueue) -> None:
        workers, jobs, now = queue.workers(), queue.jobs(), queue.now()
        busy = sum(line.busy for line in workers)
        self._workers.set(len(workers))
        self._slots.labels("busy").set(busy)
        self._slots.labels("free").set(sum(line.slots for line in workers) - busy)
        for state in ("queued", "running", "done", "stopped", "failed", "cancelled"):
            self._jobs.labels(state).set(sum(job.state == state for job in jobs))
        ages = [now - job.queued_at for job in jobs if job.state == "queued"]
        self._age.set(max(ages, default=0.0))

    def _look_at_studies(self, connection: sa.Connection) -> None:
        since = clock_of(connection) - WINDOW_SECONDS
        epochs = sa.select(sa.func.count()).select_from(t.epochs).where(t.epochs.c.measured_at >= since)
        charged = sa.select(sa.func.sum(t.charges.c.cost_nano_usd)).where(t.charges.c.charged_at >= since)
        self._epochs.set(int(connection.execute(epochs).scalar() or 0) / WINDOW_SECONDS)
        usd = int(connection.execute(charged).scalar() or 0) / NANO
        self._usd.set(usd * 3600.0 / WINDOW_SECONDS)
        behind = (t.studies.c.revision - t.view_cursors.c.revision).label("behind")
        late = sa.select(t.view_cursors.c.view, sa.func.max(behind)).join(
            t.studies, t.studies.c.id == t.view_cursors.c.study_id
        )
        late = late.where(t.view_cursors.c.view.in_(VIEWS)).group_by(t.view_cursors.c.view)
        for view, most in connection.execute(late):
            self._behind.labels(view).set(max(int(most), 0))


@router.get("/health", tags=["health"])
async def health() -> dict[str, Any]:
    """Return that the service is alive, even if its store is away or all threads are busy."""
    return {"status": "ok"}


@router.get("/ready", tags=["health"])
def ready(context: Annotated[ServiceContext, Depends(service_of)]) -> Response:
    """Return whether the service can answer requests: status 503 while its store is away."""
    try:
        context.store.study_row("")
    except DBAPIError:
        return JSONResponse({"status": "the store does not answer"}, status_code=503, headers={"Retry-After": "2"})
    return JSONResponse({"status": "ok"})


@router.get("/metrics", tags=["health"])
def metrics(request: Request, context: Annotated[ServiceContext, Depends(admin_context)]) -> Response:
    """Return figures for Prometheus; admins only."""
    return Response(request.app.state.metrics.exposition(context.store), media_type=CONTENT_TYPE_LATEST)
