"""A study keeps the counted sizes of example configurations of its space."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_studies", sa.Column("counted_examples", sa.JSON(), nullable=True))
