"""Price and number of slots may change while a study runs: each lease keeps the rates of its pool."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_studies", sa.Column("usd_per_slot_hour", sa.Float(), nullable=True))
    op.create_table(
        "automl_pool_rates",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("lease_id", sa.Integer(), sa.ForeignKey("automl_leases.id", ondelete="CASCADE"), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("slot_numbers", sa.JSON(), nullable=False),
        sa.Column("usd_per_slot_hour", sa.Float(), nullable=False),
    )
    op.create_index("ix_automl_pool_rates_lease_id", "automl_pool_rates", ["lease_id"])
