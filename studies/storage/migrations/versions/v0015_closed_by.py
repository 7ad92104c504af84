"""A study that its budget has closed keeps the limits that it was closed by, so that the same ones do not reopen it."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_studies", sa.Column("closed_by", sa.JSON(), nullable=True))
