"""A study keeps a copy of the earlier studies that it learns from."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_studies", sa.Column("earlier_studies", sa.JSON(), nullable=True))
