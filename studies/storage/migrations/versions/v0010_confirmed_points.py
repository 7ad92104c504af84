"""`automl confirm` confirms points of the archive (trial and epoch), not only trials at their full length."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_confirmations", sa.Column("epoch", sa.Integer))
