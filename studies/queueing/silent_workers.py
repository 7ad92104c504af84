"""Workers that do not answer: what became of their processes, as far as that can be seen from here."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from studies.storage import processes
from studies.storage import tables as t
from studies.storage.engine import clock_of
from studies.storage.store import Store

WorkerFate = Literal["frozen", "gone", "silent"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentWorker:
    """A worker that has not left, and whose heartbeat has stopped.

    Attributes:
        name: Name of the worker.
        host: Name of its machine.
        pid: Its process id there.
        fate: frozen if its process is stopped on this machine, gone if it has ended there, silent if it runs or cannot
            be seen from here.
        started_at: Begin in seconds since 1970.
        silent_seconds: Time since its heartbeat ran out.
        studies: Studies of the jobs that it still holds.
    """

    name: str
    host: str
    pid: int
    fate: WorkerFate
    started_at: float
    silent_seconds: float
    studies: tuple[str, ...]


def silent_workers(store: Store) -> list[SilentWorker]:
    """Return the workers that do not answer, oldest first; those that others have given up only while frozen here."""
    w = t.workers.c
    with store.snapshot() as connection:
        now = clock_of(connection)
        silent = (now - w.expires_at).label("silent_seconds")
        rows = connection.execute(sa.select(t.workers, silent).order_by(w.id)).all()
        held = _held(connection)
    latest = {(row.process_space, row.host, row.pid, row.process_started_at): row for row in rows}
    found = [(row, _fate(row)) for row in latest.values()]  # a worker that was given up joins again, in a new row
    return [
        SilentWorker(
            name=row.name,
            host=row.host,
            pid=row.pid,
            fate=fate,
            started_at=row.started_at,
            silent_seconds=max(row.silent_seconds, 0.0),
            studies=tuple(held[row.id]),
        )
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
    """What became of a worker; None if it answers, or has left."""
    process = (row.process_space, row.pid, row.process_started_at)
    if processes.is_known_stopped(*process):
        return "frozen"
    if row.ended_at is not None:
        return None
    if processes.is_known_gone(*process):
        return "gone"
    return "silent" if row.silent_seconds >= 0.0 else None
