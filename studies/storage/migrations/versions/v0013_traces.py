"""Traces are a view: revisions of attempts and pools, and the parent spans of jobs and controllers."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("automl_attempts", "automl_leases"):
        # Rows of the past have revision 0, so that no view exports them as new.
        op.add_column(table, sa.Column("revision", sa.Integer, nullable=False, server_default="0"))
    op.add_column("automl_leases", sa.Column("died", sa.Boolean, nullable=False, server_default=sa.false()))
    for table in ("automl_leases", "automl_jobs"):
        op.add_column(table, sa.Column("trace_parent", sa.String(55)))
    _add_cursors()


def _add_cursors() -> None:
    studies = sa.table("automl_studies", sa.column("id", sa.Integer), sa.column("revision", sa.Integer))
    cursors = sa.table(
        "automl_view_cursors",
        sa.column("study_id", sa.Integer),
        sa.column("view", sa.String(16)),
        sa.column("revision", sa.Integer),
        sa.column("rebuild", sa.Boolean),
        sa.column("details", sa.JSON),
    )
    rows = op.get_bind().execute(sa.select(studies.c.id, studies.c.revision)).all()
    op.bulk_insert(
        cursors,
        [
            {"study_id": row.id, "view": "traces", "revision": row.revision, "rebuild": False, "details": {}}
            for row in rows
        ],
    )
