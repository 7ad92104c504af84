"""Reads jobs, runs and accounts from their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from studies.queueing.accounts import Account, account
from studies.queueing.jobs import Job, JobState, Run, WorkerLine
from studies.queueing.shares import HALF_LIFE_SECONDS, Stay
from studies.storage import tables as t
from studies.storage.engine import clock_of

REMEMBERED_HALF_LIVES = 10
"""Number of half-lives after which a stay counts less than a thousandth, and is not read."""


def load(
    connection: sa.Connection,
    *,
    project: str | None = None,
    states: Sequence[JobState] | None = None,
    study: str | None = None,
) -> list[Job]:
    """Return jobs with what they have spent and their open runs, oldest first.

    Args:
        connection: Open connection.
        project: Project whose jobs count; None takes those of all projects.
        states: States that count; None takes all.
        study: Study whose job counts; None takes all.
    """
    spent = (
        sa.select(t.studies.c.name.label("study"), sa.func.sum(t.charges.c.cost_nano_usd).label("spent"))
        .join(t.charges, t.charges.c.study_id == t.studies.c.id)
        .group_by(t.studies.c.name)
        .subquery()
    )
    columns = [column for column in t.jobs.c if column.name not in {"spec", "base_folder"}]
    query = sa.select(*columns, spent.c.spent.label("charged")).outerjoin(spent, spent.c.study == t.jobs.c.study)
    if project is not None:
        query = query.where(t.jobs.c.project == project)
    if states is not None:
        query = query.where(t.jobs.c.state.in_(states))
    if study is not None:
        query = query.where(t.jobs.c.study == study)
    rows = connection.execute(query.order_by(t.jobs.c.id)).all()
    runs = _open_runs(connection)
    return [_job(row, runs.get(row.id)) for row in rows]


def load_accounts(connection: sa.Connection, jobs: Sequence[Job]) -> list[Account]:
    """Return the account of each limit.

    Args:
        connection: Open connection.
        jobs: All jobs.
    """
    limits = sa.select(t.spending_limits).order_by(t.spending_limits.c.kind, t.spending_limits.c.name)
    return [account(row.kind, row.name, row.nano_usd, jobs) for row in connection.execute(limits)]


def load_stays(connection: sa.Connection, now: float) -> list[Stay]:
    """Return what users had of the slots lately.

    Args:
        connection: Open connection.
        now: Present moment in seconds since 1970.
    """
    since = now - REMEMBERED_HALF_LIVES * HALF_LIFE_SECONDS
    r = t.job_runs.c
    query = sa.select(t.jobs.c.user, r.slot_numbers, r.started_at, r.ended_at).join(t.jobs, t.jobs.c.id == r.job_id)
    rows = connection.execute(query.where(sa.or_(r.ended_at.is_(None), r.ended_at >= since)))
    return [Stay(user=row.user, slots=len(row.slot_numbers), since=row.started_at, until=row.ended_at) for row in rows]


def load_workers(connection: sa.Connection) -> list[WorkerLine]:
    """Return the workers that are alive, oldest first."""
    w = t.workers.c
    alive = (w.ended_at.is_(None), w.expires_at > clock_of(connection))
    runs = sa.select(t.job_runs.c.worker_id, t.job_runs.c.slot_numbers).where(t.job_runs.c.ended_at.is_(None))
    busy: Counter[int] = Counter()
    for row in connection.execute(runs):
        busy[row.worker_id] += len(row.slot_numbers)
    rows = connection.execute(sa.select(t.workers).where(*alive).order_by(w.id))
    return [
        WorkerLine(
            name=row.name,
            host=row.host,
            device=row.device,
            slots=row.slots,
            busy=busy[row.id],
            started_at=row.started_at,
        )
        for row in rows
    ]


def open_runs_of(connection: sa.Connection, worker_id: int) -> list[int]:
    """Return the ids of the open runs of a worker."""
    mine = (t.job_runs.c.worker_id == worker_id, t.job_runs.c.ended_at.is_(None))
    return list(connection.execute(sa.select(t.job_runs.c.id).where(*mine)).scalars())


def _open_runs(connection: sa.Connection) -> dict[int, Run]:
    query = sa.select(t.job_runs, t.workers.c.name).join(t.workers, t.workers.c.id == t.job_runs.c.worker_id)
    return {row.job_id: _run(row) for row in connection.execute(query.where(t.job_runs.c.ended_at.is_(None)))}


def _run(row: sa.Row[Any]) -> Run:
    return Run(
        id=row.id,
        worker=row.name,
        slot_numbers=tuple(row.slot_numbers),
        cap_nano_usd=row.cap_nano_usd,
        started_at=row.started_at,
        ended_at=row.ended_at,
        outcome=row.outcome,
    )


def _job(row: Any, run: Run | None) -> Job:
    return Job(
        id=row.id,
        kind=row.kind,
        study=row.study,
        project=row.project,
        user=row.user,
        priority=row.priority,
        state=row.state,
        reason=row.reason,
        slots=row.slots,
        limit_nano_usd=row.limit_nano_usd,
        spent_nano_usd=max(int(row.spent_nano_usd), int(row.charged or 0)),
        request=row.request,
        submitted_at=row.submitted_at,
        queued_at=row.queued_at,
        ended_at=row.ended_at,
        run=run,
    )
