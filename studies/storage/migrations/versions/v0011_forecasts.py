"""Decisions keep the forecasts that they were based on."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_decisions", sa.Column("forecasts", sa.JSON))
