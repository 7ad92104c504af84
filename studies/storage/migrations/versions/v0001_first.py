"""All tables of version 0.1."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "automl_studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stop_reason", sa.String(length=32), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("launched_spec", sa.JSON(), nullable=False),
        sa.Column("base_folder", sa.Text(), nullable=False),
        sa.Column("sampler_attributes", sa.JSON(), nullable=False),
        sa.Column("reference_point", sa.JSON(), nullable=True),
        sa.Column("reserved_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("reserved_seconds", sa.Float(), nullable=False),
        sa.Column("overshoot_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_automl_studies"),
        sa.UniqueConstraint("name", name="uq_automl_studies_name"),
        sa.UniqueConstraint("uid", name="uq_automl_studies_uid"),
    )
    op.create_table(
        "automl_leases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_started_at", sa.Float(), nullable=False),
        sa.Column("acquired_at", sa.Float(), nullable=False),
        sa.Column("heartbeat_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("released_at", sa.Float(), nullable=True),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("pool_slots", sa.Integer(), nullable=False),
        sa.Column("pool_opened_at", sa.Float(), nullable=True),
        sa.Column("pool_closed_at", sa.Float(), nullable=True),
        sa.Column("usd_per_slot_hour", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["automl_studies.id"], name="fk_automl_leases_study_id_automl_studies", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_automl_leases"),
    )
    op.create_index("ix_automl_leases_study_id", "automl_leases", ["study_id"], unique=False)
    op.create_index(
        "uq_automl_leases_unreleased",
        "automl_leases",
        ["study_id"],
        unique=True,
        sqlite_where=sa.text("released_at IS NULL"),
        postgresql_where=sa.text("released_at IS NULL"),
    )
    op.create_table(
        "automl_trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("failure", sa.String(length=16), nullable=True),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("sampler_attributes", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("resume_checkpoint", sa.Text(), nullable=True),
        sa.Column("resume_epoch", sa.Integer(), nullable=False),
        sa.Column("paused_by", sa.String(length=16), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study_id"], ["automl_studies.id"], name="fk_automl_trials_study_id_automl_studies", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_automl_trials"),
        sa.UniqueConstraint("study_id", "number", name="uq_automl_trials_study_id_number"),
    )
    op.create_index("ix_automl_trials_study_id", "automl_trials", ["study_id"], unique=False)
    op.create_index("ix_automl_trials_study_id_revision", "automl_trials", ["study_id", "revision"], unique=False)
    op.create_table(
        "automl_view_cursors",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("view", sa.String(length=16), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("rebuild", sa.Boolean(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["automl_studies.id"],
            name="fk_automl_view_cursors_study_id_automl_studies",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_automl_view_cursors"),
        sa.UniqueConstraint("study_id", "view", name="uq_automl_view_cursors_study_id_view"),
    )
    op.create_index("ix_automl_view_cursors_study_id", "automl_view_cursors", ["study_id"], unique=False)
    op.create_table(
        "automl_attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("slots", sa.JSON(), nullable=False),
        sa.Column("start_epoch", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("charged_until", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["automl_trials.id"], name="fk_automl_attempts_trial_id_automl_trials", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_automl_attempts"),
        sa.UniqueConstraint("trial_id", "attempt", name="uq_automl_attempts_trial_id_attempt"),
    )
    op.create_index("ix_automl_attempts_trial_id", "automl_attempts", ["trial_id"], unique=False)
    op.create_table(
        "automl_charges",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("lease_id", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("usd_per_slot_hour", sa.Float(), nullable=False),
        sa.Column("cost_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("charged_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["automl_leases.id"], name="fk_automl_charges_lease_id_automl_leases", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["automl_studies.id"], name="fk_automl_charges_study_id_automl_studies", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["automl_trials.id"], name="fk_automl_charges_trial_id_automl_trials", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_automl_charges"),
    )
    op.create_index("ix_automl_charges_study_id", "automl_charges", ["study_id"], unique=False)
    op.create_index("ix_automl_charges_trial_id", "automl_charges", ["trial_id"], unique=False)
    op.create_table(
        "automl_decisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("numbers", sa.JSON(), nullable=False),
        sa.Column("decided_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["automl_trials.id"], name="fk_automl_decisions_trial_id_automl_trials", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_automl_decisions"),
    )
    op.create_index("ix_automl_decisions_trial_id", "automl_decisions", ["trial_id"], unique=False)
    op.create_table(
        "automl_epochs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("wall_seconds", sa.Float(), nullable=False),
        sa.Column("cost_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("is_milestone", sa.Boolean(), nullable=False),
        sa.Column("measured_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["automl_trials.id"], name="fk_automl_epochs_trial_id_automl_trials", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_automl_epochs"),
        sa.UniqueConstraint("trial_id", "epoch", name="uq_automl_epochs_trial_id_epoch"),
    )
    op.create_index("ix_automl_epochs_trial_id", "automl_epochs", ["trial_id"], unique=False)
