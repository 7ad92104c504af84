"""A lease names the job that confirms its study, whose user and project pay; an index speeds up sums of ledgers."""

from itertools import groupby

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_MARK = ":confirm-"


def upgrade() -> None:
    op.add_column("automl_leases", sa.Column("job_id", sa.Integer))
    op.create_index("ix_automl_leases_job_id", "automl_leases", ["job_id"])
    op.create_index("ix_automl_charges_sums", "automl_charges", ["study_id", "lease_id", "cost_nano_usd"])
    op.drop_index("ix_automl_charges_study_id", "automl_charges")
    _name_payers()


def _name_payers() -> None:
    """Add the job to leases of earlier confirm jobs: leases taken during a run of the job that have confirmed."""
    leases = sa.table("automl_leases", *map(sa.column, ("id", "study_id", "acquired_at", "job_id")))
    charges = sa.table("automl_charges", *map(sa.column, ("lease_id", "kind")))
    has_confirmed = sa.select(charges.c.lease_id).where(charges.c.kind == "confirm")
    bind = op.get_bind()
    for study_id, runs in groupby(_confirming_runs(bind), key=lambda run: run[0]):
        for _, job_id, started_at, ended_at in runs:
            mine = [leases.c.study_id == study_id, leases.c.acquired_at >= started_at, leases.c.id.in_(has_confirmed)]
            if ended_at is not None:
                mine.append(leases.c.acquired_at <= ended_at)
            bind.execute(sa.update(leases).where(*mine).values(job_id=job_id))


def _confirming_runs(bind: sa.Connection) -> list[tuple[int, int, float, float | None]]:
    """Return study, job, begin and end of each run of a confirming job."""
    studies = sa.table("automl_studies", *map(sa.column, ("id", "name")))
    jobs = sa.table("automl_jobs", *map(sa.column, ("id", "study", "kind")))
    runs = sa.table("automl_job_runs", *map(sa.column, ("job_id", "started_at", "ended_at")))
    ids = {row.name: row.id for row in bind.execute(sa.select(studies))}
    query = sa.select(jobs.c.id, jobs.c.study, runs.c.started_at, runs.c.ended_at)
    query = query.join(runs, runs.c.job_id == jobs.c.id).where(jobs.c.kind == "confirm")
    rows = [(row, row.study.partition(_MARK)[0]) for row in bind.execute(query)]
    return [(ids[name], row.id, row.started_at, row.ended_at) for row, name in rows if name in ids]
