"""Measurements of `automl confirm` are kept: a model is promoted only if it was confirmed."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "automl_confirmations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "study_id", sa.Integer, sa.ForeignKey("automl_studies.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column(
            "trial_id", sa.Integer, sa.ForeignKey("automl_trials.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("epochs", sa.Integer, nullable=False),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.Column("wall_seconds", sa.Float, nullable=False),
        sa.Column("cost_nano_usd", sa.BigInteger, nullable=False),
        sa.Column("checkpoint", sa.Text),
        sa.Column("confirmed_at", sa.Float, nullable=False),
    )
