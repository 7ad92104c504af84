"""What jobs of a queue have confirmed of a study: a later run of a job leaves out what an earlier one has trained."""

from __future__ import annotations

import math

import sqlalchemy as sa

from studies.storage import tables as t
from studies.storage.changes import Confirmed
from studies.storage.store import Store


def confirmed_since_begin_of(store: Store, study_id: int, job_id: int) -> list[Confirmed]:
    """Return what was confirmed of a study since the first run of a job that confirms it, oldest first.

    Seeds are deterministic, so a training that somebody else has confirmed meanwhile is the one that the job wants.

    Args:
        store: Store that holds the study.
        study_id: Id of the study's row.
        job_id: Id of the job.
    """
    c, mine = t.confirmations.c, (t.leases.c.study_id == study_id, t.leases.c.job_id == job_id)
    begin = sa.select(sa.func.min(t.leases.c.acquired_at)).where(*mine).scalar_subquery()
    query = sa.select(t.confirmations).where(c.study_id == study_id, c.confirmed_at >= begin)
    with store.snapshot() as connection:
        return [_confirmed(row) for row in connection.execute(query.order_by(c.id))]


def _confirmed(row: sa.Row[tuple[object, ...]]) -> Confirmed:
    return Confirmed(
        trial_id=row.trial_id,
        seed=row.seed,
        epoch=row.epochs if row.epoch is None else row.epoch,
        epochs=row.epochs,
        metrics={name: math.nan if value is None else float(value) for name, value in row.metrics.items()},
        wall_seconds=row.wall_seconds,
        cost_nano_usd=int(row.cost_nano_usd),
        checkpoint=row.checkpoint,
        at=row.confirmed_at,
    )
