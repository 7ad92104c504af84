"""Commits and queued trials carry an id, so that none is applied twice; leases name the space of their process."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_studies", sa.Column("last_commit", sa.String(32), nullable=True))
    op.add_column("automl_trials", sa.Column("enqueue_id", sa.String(32), nullable=True))
    op.create_index("uq_automl_trials_enqueue_id", "automl_trials", ["enqueue_id"], unique=True)
    op.add_column("automl_leases", sa.Column("process_space", sa.String(128), nullable=True))
