"""Adds the description of a saved model's predictions for validation samples to the results of its test."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("automl_confirmations", sa.Column("answers", sa.JSON))
