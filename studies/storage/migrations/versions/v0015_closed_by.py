"""A study closed by its budget keeps the limits at that time, so that the same limits do not reopen it."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_studies", sa.Column("closed_by", sa.JSON(), nullable=True))
