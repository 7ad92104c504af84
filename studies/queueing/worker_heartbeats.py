"""Heartbeats of workers, measured only by the database's clock."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from studies.storage.leases import processes
from studies.storage.reading.reader import of_row
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError, clock_of
from studies.storage.study_store import Store

EXPIRY_SECONDS = 10.0  # time without a heartbeat after which a worker counts as dead


class WorkerGoneError(StoreError):
    """The worker's heartbeat came too late, so other workers have taken over its jobs."""


def living(connection: sa.Connection, worker_id: int) -> sa.Row[Any]:
    """Lock and return a worker's row, with `now` and `has_run_out`. Raises WorkerGoneError if it counts as dead."""
    mine = (t.workers.c.id == worker_id, t.workers.c.ended_at.is_(None))
    query = sa.select(t.workers, clock_of(connection).label("now"), _has_run_out(connection)).where(*mine)
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        raise WorkerGoneError("worker: no heartbeat arrived for some seconds, so other workers took over its jobs")
    return row


def renew(connection: sa.Connection, worker_id: int) -> float:
    """Renew a worker's heartbeat; returns the seconds since the last. Raises WorkerGoneError if it is too late."""
    worker = living(connection, worker_id)
    mine = sa.update(t.workers).where(t.workers.c.id == worker_id)
    connection.execute(mine.values(expires_at=worker.now + EXPIRY_SECONDS))
    return float(worker.now + EXPIRY_SECONDS - worker.expires_at)


def dead_workers(connection: sa.Connection, *, silent: bool) -> list[int]:
    """Return the ids of workers whose process is dead or, with `silent`, whose heartbeat has expired."""
    rows = connection.execute(sa.select(t.workers, _has_run_out(connection)).where(t.workers.c.ended_at.is_(None)))
    return [
        row.id
        for row in rows
        if (silent and row.has_run_out) or processes.is_known_gone(row.process_space, row.pid, row.process_started_at)
    ]


def _has_run_out(connection: sa.Connection) -> sa.Label[bool]:
    return (clock_of(connection) >= t.workers.c.expires_at).label("has_run_out")


WorkerFate = Literal["frozen", "gone", "silent"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentWorker:
    """A worker whose heartbeat expired before it left the queue."""

    name: str
    host: str
    pid: int
    fate: WorkerFate  # frozen or gone if its process on this machine is stopped or has ended, else silent
    started_at: float
    silent_seconds: float  # time since its heartbeat ran out
    studies: tuple[str, ...]


def silent_workers(store: Store) -> list[SilentWorker]:
    """Return workers without a heartbeat, oldest first; ended workers only if their process here is frozen."""
    w = t.workers.c
    with store.snapshot() as connection:
        now = clock_of(connection)
        silent = (now - w.expires_at).label("silent_seconds")
        rows = connection.execute(sa.select(t.workers, silent).order_by(w.id)).all()
        held = _held(connection)
    latest = {(row.process_space, row.host, row.pid, row.process_started_at): row for row in rows}
    found = [(row, _fate(row)) for row in latest.values()]  # a worker that counted as dead gets a new row
    return [
        of_row(SilentWorker, row, fate=fate, silent_seconds=max(row.silent_seconds, 0.0), studies=tuple(held[row.id]))
        for row, fate in found
        if fate is not None
    ]


def _held(connection: sa.Connection) -> dict[int, list[str]]:
    query = sa.select(t.job_runs.c.worker_id, t.jobs.c.study).join(t.jobs, t.jobs.c.id == t.job_runs.c.job_id)
    held = defaultdict(list)
    for row in connection.execute(query.where(t.job_runs.c.ended_at.is_(None)).order_by(t.job_runs.c.id)):
        held[row.worker_id].append(row.study)
    return held


def _fate(row: sa.Row[Any]) -> WorkerFate | None:
    process = (row.process_space, row.pid, row.process_started_at)
    if processes.is_known_stopped(*process):
        return "frozen"
    if row.ended_at is not None:
        return None
    if processes.is_known_gone(*process):
        return "gone"
    return "silent" if row.silent_seconds >= 0.0 else None
