"""Tables of a team's job queue: jobs, workers and runs, spending limits of users and projects, and access tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_jobs()
    _create_workers()
    _create_access()


def _create_jobs() -> None:
    op.create_table(
        "automl_jobs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("study", sa.String(100), nullable=False, unique=True),
        sa.Column("project", sa.String(100), nullable=False, index=True),
        sa.Column("user", sa.String(100), nullable=False, index=True),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("base_folder", sa.Text, nullable=False),
        sa.Column("slots", sa.Integer),
        sa.Column("limit_nano_usd", sa.BigInteger),
        sa.Column("spent_nano_usd", sa.BigInteger, nullable=False),
        sa.Column("request", sa.String(16)),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("queued_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
    )


def _create_workers() -> None:
    op.create_table(
        "automl_workers",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process_started_at", sa.Float, nullable=False),
        sa.Column("process_space", sa.String(128)),
        sa.Column("device", sa.String(16), nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
    )
    op.create_table(
        "automl_job_runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "job_id", sa.Integer, sa.ForeignKey("automl_jobs.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column(
            "worker_id", sa.Integer, sa.ForeignKey("automl_workers.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("slot_numbers", sa.JSON, nullable=False),
        sa.Column("cap_nano_usd", sa.BigInteger),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("outcome", sa.String(16)),
    )
    op.create_index(
        "uq_automl_job_runs_open",
        "automl_job_runs",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )


def _create_access() -> None:
    op.create_table(
        "automl_tokens",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("user", sa.String(100), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
    )
    op.create_table(
        "automl_spending_limits",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("nano_usd", sa.BigInteger, nullable=False),
        sa.Column("set_at", sa.Float, nullable=False),
        sa.UniqueConstraint("kind", "name"),
    )
