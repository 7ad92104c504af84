"""Queries for jobs, their runs and their money, built once: building one takes longer than many an answer of it.

A service asks them several times a second for its readers, and so does each worker for its turns.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from studies.storage import tables as t

_IS_OPEN = t.jobs.c.ended_at.is_(None)
_SUBMITTED = sa.type_coerce(t.jobs.c.spec, sa.JSON)
_RESOURCES = (
    sa.case((_IS_OPEN, _SUBMITTED["resources", "device"].as_string())).label("device"),
    sa.case((_IS_OPEN, _SUBMITTED["resources", "cpus_per_rank"].as_integer())).label("cpus_per_rank"),
)
_WORLD_SIZE = ("space", "world_size")
_STORED = sa.select(sa.type_coerce(t.studies.c.spec, sa.JSON)[_WORLD_SIZE]).where(t.studies.c.name == t.jobs.c.study)
_TAKES_ALL = sa.and_(_IS_OPEN, t.jobs.c.slots.is_(None))
_GANGS = (
    sa.case((_TAKES_ALL, _SUBMITTED[_WORLD_SIZE])).label("submitted_gangs"),
    sa.case((_TAKES_ALL, _STORED.correlate(t.jobs).scalar_subquery())).label("stored_gangs"),
)
_OPEN = t.job_runs.c.ended_at.is_(None)

_READ = [one for one in t.jobs.c if one.name not in {"spec", "base_folder"}]
JOBS = sa.select(*_READ, *_RESOURCES, *_GANGS).order_by(t.jobs.c.id)
"""All jobs, oldest first; `device` and `cpus_per_rank` are NULL of those that have ended.

`submitted_gangs` and `stored_gangs` are the parameter `world_size` in the spec as submitted and in that of the study,
of jobs that take all slots of their worker and have not ended.
"""

_OF_WORKER = (t.workers.c.name, t.workers.c.device)
OPEN_RUNS = sa.select(t.job_runs, *_OF_WORKER).join(t.workers, t.workers.c.id == t.job_runs.c.worker_id).where(_OPEN)
"""Runs that have not ended, with `name` and `device` of their worker."""

_LATEST_RUNS_OF_QUEUED = (
    sa.select(sa.func.max(t.job_runs.c.id))
    .join(t.jobs, t.jobs.c.id == t.job_runs.c.job_id)
    .where(t.jobs.c.state == "queued")
    .group_by(t.job_runs.c.job_id)
)
CAPS_THAT_ENDED_RUNS = sa.select(t.job_runs.c.job_id, t.job_runs.c.cap_nano_usd).where(
    t.job_runs.c.id.in_(_LATEST_RUNS_OF_QUEUED), t.job_runs.c.outcome == "capped"
)
"""Caps of the latest runs of jobs that wait, where the cap ended the run."""

_LEFT_POOLS = (
    t.leases.c.pool_opened_at.is_not(None),
    t.leases.c.pool_closed_at.is_(None),
    sa.or_(t.leases.c.job_id == t.jobs.c.id, t.leases.c.job_id.is_(None) & (t.studies.c.name == t.jobs.c.study)),
)
_LATEST_RUN = sa.select(sa.func.max(t.job_runs.c.id)).where(t.job_runs.c.job_id == t.jobs.c.id)
LEFT_RUNS = (
    sa.select(t.job_runs, *_OF_WORKER, t.leases.c.study_id)
    .select_from(t.leases)
    .join(t.studies, t.studies.c.id == t.leases.c.study_id)
    .join(t.jobs, sa.and_(*_LEFT_POOLS))
    .join(t.job_runs, t.job_runs.c.id == _LATEST_RUN.correlate(t.jobs).scalar_subquery())
    .join(t.workers, t.workers.c.id == t.job_runs.c.worker_id)
    # Else somebody's command drives the study of a job that is over.
    .where(t.leases.c.acquired_at < t.job_runs.c.ended_at)
)
"""Latest runs, ended, of jobs whose study has a pool that was opened before and not closed, with `name` and
`device` of the worker and `study_id`."""

LOOK = (
    sa.select(
        t.jobs.c.project, t.jobs.c.state, t.jobs.c.reason, t.jobs.c.request, t.jobs.c.priority,
        t.jobs.c.limit_nano_usd,
        sa.select(t.job_runs.c.id).where(t.job_runs.c.job_id == t.jobs.c.id, _OPEN).scalar_subquery().label("run"),
        t.studies.c.revision, t.studies.c.state.label("study_state"),
    )
    .select_from(t.jobs)
    .outerjoin(t.studies, t.studies.c.name == t.jobs.c.study)
    .where(t.jobs.c.study == sa.bindparam("study"))
)  # fmt: skip
"""What changes whenever the status of the job of `study` does, without a look at its ledger."""


ALL_REVISIONS = sa.select(t.studies.c.id, t.studies.c.uid, t.studies.c.name, t.studies.c.revision)
"""Id, uid, name and revision of all studies."""
REVISIONS_OF = ALL_REVISIONS.where(t.studies.c.name.in_(sa.bindparam("names", expanding=True)))
"""The same of the studies `names`."""


def _charges(*, of_some: bool) -> sa.Select[Any]:
    c = t.charges.c
    ledgers = sa.select(c.study_id, c.lease_id, sa.func.sum(c.cost_nano_usd).label("cost"))
    if of_some:
        ledgers = ledgers.where(c.study_id.in_(sa.bindparam("study_ids", expanding=True)))
    by_lease = ledgers.group_by(c.study_id, c.lease_id).subquery()  # few rows, of which the leases are looked up
    query = sa.select(by_lease.c.study_id, t.leases.c.job_id, by_lease.c.cost)
    return query.outerjoin(t.leases, t.leases.c.id == by_lease.c.lease_id)


ALL_CHARGES = _charges(of_some=False)
"""Sums of charges in nano-dollars, by the id of their study and the job that has confirmed it, NULL for its own."""
CHARGES_OF = _charges(of_some=True)
"""The same of the studies `study_ids`."""
