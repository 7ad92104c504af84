"""An index finds the few open pools without reading all pools that ever existed."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

IS_OPEN = "pool_opened_at IS NOT NULL AND pool_closed_at IS NULL"


def upgrade() -> None:
    op.create_index(
        "ix_automl_leases_open_pools",
        "automl_leases",
        ["study_id"],
        sqlite_where=sa.text(IS_OPEN),
        postgresql_where=sa.text(IS_OPEN),
    )
