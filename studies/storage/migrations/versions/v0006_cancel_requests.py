"""Users may ask the controller of a study to end one of its trials."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_trials", sa.Column("cancel_requested_at", sa.Float(), nullable=True))
