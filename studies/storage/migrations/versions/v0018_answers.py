"""A test of a saved model keeps a description of its answers to validation samples."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("automl_confirmations", sa.Column("answers", sa.JSON))
