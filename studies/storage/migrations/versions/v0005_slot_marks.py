"""Charges record their slots and interval, attempts their lease, and marks how far each slot of a pool is charged."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_charges", sa.Column("since", sa.Float(), nullable=True))
    op.add_column("automl_charges", sa.Column("until", sa.Float(), nullable=True))
    op.add_column("automl_charges", sa.Column("slot_numbers", sa.JSON(), nullable=True))
    op.add_column("automl_attempts", sa.Column("lease_id", sa.Integer(), nullable=True))
    op.create_table(
        "automl_slot_marks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.Integer(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("charged_until", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lease_id"],
            ["automl_leases.id"],
            name="fk_automl_slot_marks_lease_id_automl_leases",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_automl_slot_marks"),
        sa.UniqueConstraint("lease_id", "slot", name="uq_automl_slot_marks_lease_id_slot"),
    )
    _mark_open_pools()


def _mark_open_pools() -> None:
    """Mark pools that dead controllers left open; their charges are spread over all slots, since slots are unknown."""
    connection = op.get_bind()
    pools = connection.execute(
        sa.text(
            "SELECT l.id, l.study_id, l.pool_slots, l.pool_opened_at, SUM(c.slots * c.seconds) AS charged "
            "FROM automl_leases l LEFT JOIN automl_charges c ON c.lease_id = l.id "
            "WHERE l.pool_opened_at IS NOT NULL AND l.pool_closed_at IS NULL "
            "GROUP BY l.id, l.study_id, l.pool_slots, l.pool_opened_at ORDER BY l.id"
        )
    ).all()
    mark = sa.text("INSERT INTO automl_slot_marks (lease_id, slot, charged_until) VALUES (:lease, :slot, :until)")
    running = sa.text(
        "UPDATE automl_attempts SET lease_id = :lease WHERE outcome = 'running' AND started_at >= :opened "
        "AND trial_id IN (SELECT id FROM automl_trials WHERE study_id = :study)"
    )
    for pool in pools:
        until = pool.pool_opened_at + (pool.charged or 0.0) / max(pool.pool_slots, 1)
        for slot in range(pool.pool_slots):
            connection.execute(mark, {"lease": pool.id, "slot": slot, "until": until})
        connection.execute(running, {"lease": pool.id, "opened": pool.pool_opened_at, "study": pool.study_id})
