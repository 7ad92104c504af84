"""Heartbeats of workers: which of them are alive, by the database's clock alone."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from studies.storage import processes
from studies.storage import tables as t
from studies.storage.engine import StoreError, clock_of

EXPIRY_SECONDS = 10.0
"""Time after its last heartbeat from which a worker counts as dead."""


class WorkerGoneError(StoreError):
    """The worker did not renew its heartbeat in time: its jobs are other workers' now."""


def living(connection: sa.Connection, worker_id: int) -> sa.Row[Any]:
    """Return a worker's row, with the present moment as `now` and `has_run_out`, locked against those who end it.

    Args:
        connection: Connection in a transaction that writes.
        worker_id: Id of the worker's row.

    Raises:
        WorkerGoneError: It has been given up.
    """
    mine = (t.workers.c.id == worker_id, t.workers.c.ended_at.is_(None))
    query = sa.select(t.workers, clock_of(connection).label("now"), _has_run_out(connection)).where(*mine)
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        raise WorkerGoneError("worker: it did not answer for some seconds, and its jobs were given to others")
    return row


def renew(connection: sa.Connection, worker_id: int) -> float:
    """Renew a worker's heartbeat; returns the seconds since the one before.

    Raises:
        WorkerGoneError: It has been given up.
    """
    worker = living(connection, worker_id)
    mine = sa.update(t.workers).where(t.workers.c.id == worker_id)
    connection.execute(mine.values(expires_at=worker.now + EXPIRY_SECONDS))
    return float(worker.now + EXPIRY_SECONDS - worker.expires_at)


def dead_workers(connection: sa.Connection, *, silent: bool) -> list[int]:
    """Return the ids of the workers whose process is known to be gone.

    Args:
        connection: Open connection.
        silent: Whether those count as well whose heartbeat has run out.
    """
    rows = connection.execute(sa.select(t.workers, _has_run_out(connection)).where(t.workers.c.ended_at.is_(None)))
    return [
        row.id
        for row in rows
        if (silent and row.has_run_out) or processes.is_known_gone(row.process_space, row.pid, row.process_started_at)
    ]


def _has_run_out(connection: sa.Connection) -> sa.Label[bool]:
    return (clock_of(connection) >= t.workers.c.expires_at).label("has_run_out")
