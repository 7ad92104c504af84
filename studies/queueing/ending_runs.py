"""Ends runs of jobs, and workers that have died: what becomes of the job follows from how its run ended."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from studies.queueing import job_rows
from studies.queueing.jobs import GOES_BACK, MOST_DEATHS, JobState, RunOutcome
from studies.storage import tables as t
from studies.storage.engine import clock_of

_STATES: Mapping[RunOutcome, JobState] = {
    "done": "done", "stopped": "stopped", "failed": "failed", "cancelled": "cancelled",
    "preempted": "queued", "lost": "queued", "died": "queued", "capped": "queued",
}  # fmt: skip


def end_worker(connection: sa.Connection, worker_id: int) -> None:
    """End a worker and what still runs there, which waits for another one.

    Args:
        connection: Connection in a transaction in which no worker takes its turn.
        worker_id: Id of the worker's row.
    """
    for run_id in job_rows.open_runs_of(connection, worker_id):
        end_run(connection, run_id, "lost", "its worker has died or left; it goes on elsewhere")
    ended = sa.update(t.workers).where(t.workers.c.id == worker_id, t.workers.c.ended_at.is_(None))
    connection.execute(ended.values(ended_at=clock_of(connection)))


def end_run(connection: sa.Connection, run_id: int, outcome: RunOutcome, reason: str) -> None:
    """End a run, and move its job on; nothing happens if the run was given up before.

    Args:
        connection: Connection in a transaction in which no worker takes its turn.
        run_id: Id of the run's row.
        outcome: How it ended.
        reason: Why, in one line.
    """
    ended = sa.update(t.job_runs).where(t.job_runs.c.id == run_id, t.job_runs.c.ended_at.is_(None))
    now = clock_of(connection)
    row = connection.execute(ended.values(ended_at=now, outcome=outcome).returning(t.job_runs.c.job_id)).first()
    if row is None:
        return
    state = _STATES[outcome]
    if outcome == "died" and _deaths(connection, row.job_id) >= MOST_DEATHS:
        state, reason = "failed", f"{reason}; that was the time number {MOST_DEATHS} in a row"
    asked = connection.execute(sa.select(t.jobs.c.request).where(t.jobs.c.id == row.job_id)).scalar()
    if state == "queued" and asked in {"stop", "cancel"}:
        state = "stopped" if asked == "stop" else "cancelled"
    values: dict[str, Any] = {"state": state, "reason": reason, "request": None}
    values["ended_at"] = None if outcome in GOES_BACK and state == "queued" else now
    connection.execute(sa.update(t.jobs).where(t.jobs.c.id == row.job_id).values(values))


def _deaths(connection: sa.Connection, job_id: int) -> int:
    """How many of a job's latest runs ended by the death of its process, one after the other."""
    runs = sa.select(t.job_runs.c.outcome).where(t.job_runs.c.job_id == job_id, t.job_runs.c.ended_at.is_not(None))
    latest = connection.execute(runs.order_by(t.job_runs.c.id.desc()).limit(MOST_DEATHS)).scalars()
    return sum(1 for _ in itertools.takewhile(lambda outcome: outcome == "died", latest))
